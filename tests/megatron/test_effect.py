"""Megatron uses every flag that it accepts."""

import re
from functools import cache
from pathlib import Path

import megatron.training
import pytest
from cases import case, specs
from effects import READ_BY_THE_LOOP, altered, unmet, without_effect
from stages import Megatron, NotAccepted

SEEN: set[tuple[str, ...]] = set()
"""Flags and values that had an effect in another case."""

PLAIN = [
    "--num-layers",
    "8",
    "--hidden-size",
    "512",
    "--num-attention-heads",
    "8",
    "--seq-length",
    "256",
    "--max-position-embeddings",
    "256",
    "--micro-batch-size",
    "1",
    "--global-batch-size",
    "64",
    "--train-iters",
    "100",
    "--lr",
    "0.001",
    "--eval-interval",
    "10",
    "--bf16",
    "--mock-data",
    "--tokenizer-type",
    "NullTokenizer",
    "--vocab-size",
    "1000",
]
IGNORED = {
    "GQA without its switch": ("--num-query-groups 2", "--num-query-groups 2"),
    "the batch ramp of old": ("--rampup-batch-size 16 16 1000", "--rampup-batch-size 16 16 1000"),
    "a switch that nothing reads": ("--use-flash-attn", "--use-flash-attn"),
    "models that are the only ones": ("--use-mcore-models", "--use-mcore-models"),
}


@cache
def _sources() -> str:
    """Megatron and the trainer, without the definitions of the arguments."""
    trainer = Path(__file__).parents[2] / "trainer-image" / "megatron_trainer"
    roots = (Path(megatron.training.__file__).parents[1], trainer)
    files = (path for root in roots for path in root.rglob("*.py") if path.name != "arguments.py")
    return "\n".join(path.read_text() for path in files)


@pytest.mark.parametrize("name", specs())
def test_no_flag_is_changed_by_megatron(megatron: Megatron, name: str) -> None:
    words = case(name).words
    assert altered(megatron, words, megatron.start(words, case(name).world_size)) == []


@pytest.mark.parametrize("name", specs())
def test_no_flag_lacks_one_that_it_requires(megatron: Megatron, name: str) -> None:
    words = case(name).words
    assert unmet(megatron, words, megatron.start(words, case(name).world_size)) == []


@pytest.mark.parametrize("name", specs())
def test_every_flag_has_an_effect(megatron: Megatron, name: str) -> None:
    assert without_effect(megatron, case(name).words, case(name).world_size, SEEN) == []


@pytest.mark.parametrize("dest", READ_BY_THE_LOOP)
def test_flags_listed_as_read_by_the_loop_are_read(dest: str) -> None:
    reads = re.compile(rf"\bargs\.{dest}\b|\b\w*config\w*\.{dest}\b|\bcfg\.\w+\.{dest}\b|, [\"']{dest}[\"']")
    assert reads.search(_sources()), f"nothing reads {dest}"


@pytest.mark.parametrize(("added", "found"), IGNORED.values(), ids=IGNORED.keys())
def test_the_check_detects_ignored_flags(megatron: Megatron, added: str, found: str) -> None:
    assert found in without_effect(megatron, [*PLAIN, *added.split()], 8, set())


def test_the_check_detects_disabled_flags(megatron: Megatron) -> None:
    words = [*PLAIN, "--sequence-parallel"]
    assert altered(megatron, words, megatron.start(words, 8)) == [
        "--sequence-parallel: given True, used False"
    ]


def test_the_check_detects_a_missing_flag(megatron: Megatron) -> None:
    words = [*PLAIN, "--moe-router-topk", "4", "--rotary-base", "500000"]
    assert unmet(megatron, words, megatron.start(words, 8)) == ["--moe-router-topk", "--rotary-base"]


def test_the_check_detects_what_sinkhorn_ignores(megatron: Megatron) -> None:
    experts = "--num-experts 8 --disable-bias-linear --moe-router-load-balancing-type sinkhorn"
    words = [*PLAIN, *experts.split(), "--moe-router-score-function", "sigmoid"]
    assert unmet(megatron, words, megatron.start(words, 8)) == ["--moe-router-score-function"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--rope-theta 500000", "parse_args: .*unrecognized arguments: --rope-theta"),
        ("--pipeline-model-parallel-size 3", "validate_args: .*world size"),
        ("--tensor-model-parallel-size 3", "validate_args: "),
        ("--num-experts 8 --expert-tensor-parallel-size 2", "TransformerConfig: .*Bias in Moe"),
        (
            "--num-experts 8 --expert-model-parallel-size 8 --expert-tensor-parallel-size 2"
            " --disable-bias-linear",
            "process groups: .*not divisible",
        ),
        ("--lr-warmup-iters 100", "learning rate: "),
    ],
)
def test_the_check_reports_the_stage_that_rejects(megatron: Megatron, words: str, message: str) -> None:
    with pytest.raises(NotAccepted, match=message):
        megatron.start([*PLAIN, *words.split()], 8)
