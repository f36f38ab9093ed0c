"""Layers of pipeline stages, split as in Megatron."""

import pytest
from megatron_operator.api.diagnostics import Diagnostics
from megatron_operator.api.errors import FieldError
from megatron_operator.api.training import ParallelismSpec
from megatron_operator.planner.search.pipeline_split import (
    StageSplit,
    automatic_split,
    interleaved_layout,
    interleaving_error,
    parse_layout,
    requested_split,
    split_before,
)


@pytest.mark.parametrize(
    ("layers", "pp", "stages"),
    [
        (32, 4, (8, 8, 8, 8)),
        (126, 8, (15, 16, 16, 16, 16, 16, 16, 15)),
        (126, 16, (7, *(8,) * 14, 7)),
        (31, 4, (8, 8, 8, 7)),
        (61, 16, (*(4,) * 15, 1)),
        (30, 4, (7, 8, 8, 7)),
    ],
)
def test_layers_that_do_not_divide_are_split_unevenly(layers: int, pp: int, stages: tuple[int, ...]) -> None:
    split = automatic_split(layers, pp)
    assert split is not None
    assert split.layers == stages
    assert sum(split.layers) == layers


@pytest.mark.parametrize(("layers", "pp"), [(4, 8), (5, 4), (61, 17)])
def test_no_split_leaves_a_stage_empty(layers: int, pp: int) -> None:
    assert automatic_split(layers, pp) is None


def asked(
    layers: int, pp: int, mtp: int = 0, **settings: object
) -> tuple[StageSplit | None, list[FieldError]]:
    found = Diagnostics()
    return requested_split(layers, mtp, pp, ParallelismSpec.model_validate(settings), found), found.errors


def test_the_last_stage_may_be_requested() -> None:
    split, errors = asked(61, 16, decoderLastPipelineNumLayers=1)
    assert (split and split.layers, errors) == ((4,) * 15 + (1,), [])


def test_both_ends_may_be_requested() -> None:
    split, _ = asked(30, 4, decoderFirstPipelineNumLayers=7, decoderLastPipelineNumLayers=7)
    assert split is not None
    assert split.layers == (7, 8, 8, 7)


def test_ends_that_leave_no_whole_stages_are_rejected_with_the_numbers() -> None:
    split, errors = asked(32, 4, decoderLastPipelineNumLayers=7)
    assert split is None
    assert "32 layers less 7 at the ends leave 25 for 3 stages" in errors[0].message


def test_a_layout_string_is_counted_stage_by_stage() -> None:
    split, errors = asked(16, 2, mtp=1, pipelineModelParallelLayout="Et*3|t*5|t*4|t*4mL")
    assert errors == []
    assert split is not None
    assert (split.layers, split.virtual) == ((7, 9), 2)


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        ("Et*8|t*7L", "places 15 layers, the model has 16"),
        ("Et*8|t*8", "does not begin with its only E and end with its only L"),
        ("Et*4|t*4|t*8L", "has 3 chunks, not a multiple of PP 2"),
        ("Et*8|x*8L", "'x' is not one of E, t, m, L and |"),
        ("Et*8|t*8mL", "places 1 mtp layers, the model has 0"),
    ],
)
def test_an_invalid_layout_string_is_rejected(layout: str, message: str) -> None:
    split, errors = asked(16, 2, pipelineModelParallelLayout=layout)
    assert split is None
    assert message in errors[0].message


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        ("Et*8m|t*8mL", "places layers behind mtp layers; place each m behind the last t"),
        ("Et*8|t*7|mm|tL", "places layers behind mtp layers; place each m behind the last t"),
        ("Et*8|t*8|m|mL", "does not place the mtp layers in one chunk, the last one of its stage"),
        ("Et*8|t*8mm||L", "does not place the mtp layers in one chunk, the last one of its stage"),
        ("Et*8|t*8|mm|L", None),
        ("Et*8|t*8mmL", None),
    ],
)
def test_predictions_are_behind_all_layers_in_the_last_chunk_of_one_stage(
    layout: str, message: str | None
) -> None:
    """As `validate_layer_layout` of Megatron has it."""
    split, errors = asked(16, 2, mtp=2, pipelineModelParallelLayout=layout)
    if message is None:
        assert (split and split.layers, errors) == ((8, 8), [])
    else:
        assert split is None
        assert message in f"{errors[0].message}; {errors[0].fix}"


def test_a_layout_of_several_chunks_is_rejected_without_pipeline_stages() -> None:
    split, errors = asked(32, 1, pipelineModelParallelLayout="Et*16|t*16L")
    assert split is None
    assert "has 2 chunks, and PP 1 has no virtual stages" in errors[0].message
    assert errors[0].fix.startswith("set pipelineModelParallelSize: 2")


def test_a_layout_unrolls_groups_as_megatron_does() -> None:
    assert parse_layout("Ettt|(tt|)*3,m|L") == ["Ettt", "tt", "tt", "tt", "m", "L"]


@pytest.mark.parametrize(
    ("layers", "virtual", "pp", "refused"),
    [
        ((8, 8), 2, 2, False),
        ((8, 8), 3, 2, True),
        ((16,), 2, 1, True),
        ((7, 8, 8, 7), 4, 4, True),
    ],
)
def test_interleaving_needs_whole_chunks_on_several_stages(
    layers: tuple[int, ...], virtual: int, pp: int, refused: bool
) -> None:
    assert (interleaving_error(StageSplit(layers, virtual=virtual), pp) is not None) == refused


@pytest.mark.parametrize(
    ("layers", "fix"), [((4, 4, 4, 1), "leave it out"), ((8, 8, 8, 4), "set a divisor of 4")]
)
def test_refused_virtual_stages_name_what_divides_all_stages(layers: tuple[int, ...], fix: str) -> None:
    refused = interleaving_error(StageSplit(layers, virtual=8), 4)
    assert refused is not None
    assert refused.fix == fix


def test_embedding_and_loss_count_as_layers_for_interleaving() -> None:
    split = StageSplit((15, 16, 16, 15), count_embedding=True, count_loss=True, virtual=4)
    assert interleaving_error(split, 4) is None


@pytest.mark.parametrize(
    ("pp", "virtual", "layout", "stages"),
    [
        (8, 2, "Et*4|(t*4|)*14tmL", (8,) * 7 + (5,)),  # DeepSeek-V3 on 256 GPUs in Megatron-Bridge
        (4, 4, "Et*4|(t*4|)*14tmL", (16, 16, 16, 13)),
        (2, 2, "Et*16|(t*16|)*2t*13mL", (32, 29)),
    ],
)
def test_chunks_that_cannot_be_equal_are_written_as_a_layout(
    pp: int, virtual: int, layout: str, stages: tuple[int, ...]
) -> None:
    split = interleaved_layout(61, 1, pp, virtual)
    assert split is not None
    assert (split.layout, split.layers, split.virtual) == (layout, stages, virtual)
    chunks = parse_layout(layout)
    assert len(chunks) == pp * virtual
    assert "".join(chunks).count("t") == 61


def test_chunks_that_can_be_equal_need_no_layout() -> None:
    assert interleaved_layout(64, 0, 8, 2) is None


@pytest.mark.parametrize(
    ("split", "chunks"),
    [
        (StageSplit((14, 12, 16), first=14, last=16), (14, 12, 16)),
        (StageSplit((8, 8), virtual=2), (4, 4, 4, 4)),
        (StageSplit((7, 8, 7), count_embedding=True, count_loss=True, virtual=2), (3, 4, 4, 4, 4, 3)),
        (StageSplit((4, 1), layout="Et|t|t*3|mL", virtual=2), (1, 1, 3, 0)),
    ],
)
def test_chunks_of_stages_are_in_the_order_of_the_model(split: StageSplit, chunks: tuple[int, ...]) -> None:
    assert split.chunks == chunks
    assert sum(split.chunks) == sum(split.layers)


@pytest.mark.parametrize(
    ("pp", "virtual", "layout", "layers"),
    [
        (2, None, "Et*4|t*5mL", (4, 5)),
        (4, None, "Et|t*3|t*4|tmL", (1, 3, 4, 1)),
        (2, 2, "Et|t*3|t*4|tmL", (5, 4)),
    ],
)
def test_chunks_begin_with_some_layers_only(
    pp: int, virtual: int | None, layout: str, layers: tuple[int, ...]
) -> None:
    split = split_before((0, 1, 4, 8), 9, 1, pp, virtual)
    assert split == StageSplit(layers, layout=layout, virtual=virtual)


def test_more_chunks_than_layers_that_may_begin_one_are_not_split() -> None:
    assert split_before((0, 1, 4, 8), 9, 0, 5, None) is None
