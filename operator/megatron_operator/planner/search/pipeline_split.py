"""Layers of each pipeline stage, split as Megatron's `get_num_layers_to_build` splits them."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from megatron_operator.api.diagnostics import Diagnostics
from megatron_operator.api.errors import FieldError, shown
from megatron_operator.api.training import ParallelismSpec

MOST_LETTERS: Final = 50_000
"""Letters of a layout string once it is expanded: 10,000 layers, each in a chunk of its own, and more."""


@dataclass(frozen=True, slots=True)
class StageSplit:
    """Layers of each stage, and the settings that make Megatron split them this way."""

    layers: tuple[int, ...]
    first: int | None = None
    """Layers of the first stage, where they are set apart."""
    last: int | None = None
    """Layers of the last stage, where they are set apart."""
    count_embedding: bool = False
    """Whether the embedding counts as one layer of the first stage."""
    count_loss: bool = False
    """Whether the loss counts as one layer of the last stage."""
    layout: str | None = None
    """Megatron's layout string, where only that expresses the split."""
    virtual: int | None = None
    """Virtual stages (interleaved chunks) of a stage; none without interleaving."""

    @property
    def counted(self) -> set[int]:
        """Numbers of layers that stages have, where the embedding or the loss may count as one."""
        last = len(self.layers) - 1
        return {
            n + (self.count_embedding and i == 0) + (self.count_loss and i == last)
            for i, n in enumerate(self.layers)
        }

    @property
    def chunks(self) -> tuple[int, ...]:
        """Layers of each chunk, in the model's order; a stage is one chunk without interleaving."""
        if self.layout is not None:
            return tuple(chunk.count("t") for chunk in parse_layout(self.layout))
        virtual, last = self.virtual or 1, len(self.layers) - 1
        return tuple(
            (n + (self.count_embedding and i == 0) + (self.count_loss and i == last)) // virtual
            - (self.count_embedding and i == 0 and chunk == 0)
            - (self.count_loss and i == last and chunk == virtual - 1)
            for chunk in range(virtual)
            for i, n in enumerate(self.layers)
        )

    @property
    def even(self) -> bool:
        """Whether all stages have the same number of layers."""
        return len(set(self.layers)) == 1


def parse_layout(layout: str) -> list[str]:
    """Split Megatron's layout string into one string of `E t m L` per chunk.

    Raises ValueError for other letters, and for more of them than the largest model needs.
    """
    text = layout.replace(",", "")
    for pattern in (r"\(([^)]+)\)\*(\d{1,4})", r"(.)\*(\d{1,4})"):
        expanded = sum(len(m.group(1)) * int(m.group(2)) for m in re.finditer(pattern, text))
        if len(text) + expanded > MOST_LETTERS:
            raise ValueError(f"it stands for more than {MOST_LETTERS} letters")
        text = re.sub(pattern, lambda m: m.group(1) * int(m.group(2)), text)
    if foreign := sorted(set(text) - set("EtmL|")):
        raise ValueError(f"{shown(''.join(foreign))} is not one of E, t, m, L and |")
    return text.split("|")


def requested_split(
    layers: int, mtp: int, pp: int, asked: ParallelismSpec, found: Diagnostics
) -> StageSplit | None:
    """The split that the recipe requests at this PP; none when it requests none or an invalid one.

    `layers` and `mtp` are the model's transformer and multi-token-prediction layers; errors go to `found`.
    """
    virtual = asked.num_virtual_stages_per_pipeline_rank
    ends = asked.decoder_first_pipeline_num_layers, asked.decoder_last_pipeline_num_layers
    accounted = (
        bool(asked.account_for_embedding_in_pipeline_split),
        bool(asked.account_for_loss_in_pipeline_split),
    )
    if pp == 1 and (any(end is not None for end in ends) or any(accounted)):
        found.error(
            "spec.parallelism.pipelineModelParallelSize",
            "is 1, so there are no stages to split layers over",
            "set it above 1, or leave the settings of the stage split out",
        )
        return None
    if asked.pipeline_model_parallel_layout is not None:
        return _layout_split(layers, mtp, pp, asked, found)
    if any(end is not None for end in ends):
        if any(accounted):
            found.error(
                "spec.parallelism.accountForEmbeddingInPipelineSplit",
                "is set together with the layers of the first or last stage",
                "set either the accountFor... fields or decoderFirst/LastPipelineNumLayers",
            )
            return None
        return _ends_split(layers, pp, ends[0], ends[1], virtual, found)
    if any(accounted):
        return _accounted_split(layers, pp, accounted[0], accounted[1], virtual, found)
    if layers % pp:
        return None
    return StageSplit((layers // pp,) * pp, virtual=virtual)


def _layout_split(
    layers: int, mtp: int, pp: int, asked: ParallelismSpec, found: Diagnostics
) -> StageSplit | None:
    layout, field = asked.pipeline_model_parallel_layout or "", "spec.parallelism.pipelineModelParallelLayout"

    def refuse(message: str, fix: str) -> None:
        found.error(field, message, fix)

    others = (
        asked.decoder_first_pipeline_num_layers,
        asked.decoder_last_pipeline_num_layers,
        asked.account_for_embedding_in_pipeline_split or None,
        asked.account_for_loss_in_pipeline_split or None,
        asked.num_virtual_stages_per_pipeline_rank,
    )
    if any(other is not None for other in others):
        refuse("is set together with another setting of the stage split", "leave the others out")
        return None
    try:
        chunks = parse_layout(layout)
    except ValueError as error:
        refuse(f"{shown(layout)}: {error}", "write chunks such as Et*4|t*4|t*4|tmL")
        return None
    text = "".join(chunks)
    if len(chunks) % pp:
        refuse(f"has {len(chunks)} chunks, not a multiple of PP {pp}", f"write a multiple of {pp} chunks")
    elif not (text.startswith("E") and text.endswith("L") and text.count("E") == text.count("L") == 1):
        refuse("does not begin with its only E and end with its only L", "begin with E, end with L")
    elif text.count("t") != layers:
        refuse(f"places {text.count('t')} layers, the model has {layers}", f"place {layers} t")
    elif text.count("m") != mtp:
        refuse(f"places {text.count('m')} mtp layers, the model has {mtp}", f"place {mtp} m")
    elif "t" in text.partition("m")[2]:
        refuse("places layers behind mtp layers", "place each m behind the last t")
    elif sum("m" in chunk for chunk in chunks) > 1 or any("m" in chunk for chunk in chunks[:-pp]):
        refuse(
            "does not place the mtp layers in one chunk, the last one of its stage",
            f"place all m in one of the last {pp} chunks, for example before L",
        )
    elif pp == 1 and len(chunks) > 1:
        stages = next(n for n in range(2, len(chunks) + 1) if len(chunks) % n == 0)
        refuse(
            f"has {len(chunks)} chunks, and PP 1 has no virtual stages",
            f"set pipelineModelParallelSize: {stages} and a count that it divides, or leave the layout out",
        )
    else:
        per_stage = tuple(sum(chunk.count("t") for chunk in chunks[stage::pp]) for stage in range(pp))
        virtual = len(chunks) // pp
        return StageSplit(per_stage, layout=layout, virtual=virtual if virtual > 1 else None)
    return None


def _ends_split(
    layers: int, pp: int, first: int | None, last: int | None, virtual: int | None, found: Diagnostics
) -> StageSplit | None:
    middle = pp - (first is not None) - (last is not None)
    left = layers - (first or 0) - (last or 0)
    field = "decoderFirstPipelineNumLayers" if first is not None else "decoderLastPipelineNumLayers"
    if left < 0 or middle < 0 or bool(left) != bool(middle) or (middle and left % middle):
        found.error(
            f"spec.parallelism.{field}",
            f"{layers} layers less {(first or 0) + (last or 0)} at the ends leave {left} for {middle} stages",
            "choose ends that leave a multiple of the stages between them",
        )
        return None
    each = left // middle if middle else 0
    stages = (first if first is not None else each,) + (each,) * (pp - 2)
    stages += (last if last is not None else each,) if pp > 1 else ()
    return StageSplit(stages, first=first, last=last, virtual=virtual)


def _accounted_split(
    layers: int, pp: int, embedding: bool, loss: bool, virtual: int | None, found: Diagnostics
) -> StageSplit | None:
    counted = layers + embedding + loss
    if counted % pp:
        parts = " + embedding" * embedding + " + loss" * loss
        found.error(
            "spec.parallelism.pipelineModelParallelSize",
            f"{layers} layers{parts} are {counted}, not divisible by PP {pp}",
            f"set a divisor of {counted}",
        )
        return None
    stages = [counted // pp] * pp
    stages[0] -= embedding
    stages[-1] -= loss
    return StageSplit(tuple(stages), count_embedding=embedding, count_loss=loss, virtual=virtual)


def automatic_split(layers: int, pp: int) -> StageSplit | None:
    """An even split; else embedding and loss counted as layers; else fewer layers in the last stage.

    `layers` transformer layers are split over `pp` stages. None when a stage would be empty. A last stage of
    one layer may still be the best there is: 61 layers on 16 stages are 15 of 4 and 1, as in the published
    layouts of DeepSeek-V3 and Kimi K2.
    """
    if pp > layers:
        return None
    if layers % pp == 0:
        return StageSplit((layers // pp,) * pp)
    for embedding, loss in ((True, True), (False, True), (True, False)):
        counted = layers + embedding + loss
        if counted % pp == 0 and counted // pp > 1:
            return _accounted_split(layers, pp, embedding, loss, None, Diagnostics())
    each = -(-layers // pp)
    last = layers - each * (pp - 1)
    if last < 1:
        return None
    return StageSplit((each,) * (pp - 1) + (last,), last=last)


def interleaved_layout(layers: int, mtp: int, pp: int, virtual: int) -> StageSplit | None:
    """Uneven chunks, which only a layout string can express: `Et*4|(t*4|)*14tmL`.

    `layers` transformer layers and `mtp` multi-token-prediction layers, in `virtual` chunks for each of `pp`
    stages. None when the chunks are even, or one would be empty.
    """
    chunks = automatic_split(layers, pp * virtual)
    if chunks is None or chunks.even:
        return None
    first, *middle, last = chunks.layers
    text = f"E{_layers(first)}|" + f"({_layers(middle[0])}|)*{len(middle)}" + _layers(last) + "m" * mtp + "L"
    per_stage = tuple(sum(chunks.layers[stage::pp]) for stage in range(pp))
    return StageSplit(per_stage, layout=text, virtual=virtual)


def split_before(
    starts: Sequence[int], layers: int, mtp: int, pp: int, virtual: int | None
) -> StageSplit | None:
    """A nearly even split whose chunks begin with one of the layers `starts`, which are counted from 0.

    None where there are fewer of these than chunks.
    """
    count = pp * (virtual or 1)
    if len(starts) < count:
        return None
    begins = [0]
    for chunk in range(1, count):
        # Each chunk behind this one needs a layer of its own to begin with.
        left = [n for n in starts[: len(starts) - (count - chunk - 1)] if n > begins[-1]]
        begins.append(min(left, key=lambda n: abs(n - layers * chunk / count)))
    chunks = [end - begin for begin, end in zip(begins, [*begins[1:], layers], strict=True)]
    text = "E" + "|".join(map(_layers, chunks)) + "m" * mtp + "L"
    per_stage = tuple(sum(chunks[stage::pp]) for stage in range(pp))
    return StageSplit(per_stage, layout=text, virtual=virtual)


def _layers(count: int) -> str:
    return "t" if count == 1 else f"t*{count}"


def interleaving_error(split: StageSplit, pp: int) -> FieldError | None:
    """Why a split cannot be interleaved; none if it can.

    Interleaving needs 2 stages, with overlapped point-to-point communication, and chunks of whole layers
    (`validate_args` of Megatron). Without the overlap it needs 3 (`flag_layouts`).
    """
    virtual, field = split.virtual, "spec.parallelism.numVirtualStagesPerPipelineRank"
    if virtual is None or virtual == 1 or split.layout is not None:
        return None
    if pp < 2:
        return FieldError(field, f"{virtual} needs PP of at least 2, PP is {pp}", "leave it out or raise PP")
    if uneven := sorted(n for n in split.counted if n % virtual):
        common = math.gcd(*split.counted)
        return FieldError(
            field,
            f"{uneven[0]} layers of a stage are not divisible by {virtual} virtual stages",
            f"set a divisor of {common}" if common > 1 else "leave it out",
        )
    return None
