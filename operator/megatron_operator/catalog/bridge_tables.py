"""Tables of Megatron-Bridge's recipe functions: one line per function, as in its ConfigContainer.

    function                                  on     precision  tp pp vp cp ep etp sp  mbs  gbs  seq  lr ...
    llama3_8b_pretrain_2gpu_h100_bf16_config  2xh100 bf16        1  1  -  2  1   -  0    1  512 8192  ...

`-` means not set. Options follow the last column: `also=NAME` (other names of the function), `benchmark`
(measures throughput, on random data), `least` (the function gives no count: the smallest for its sizes),
`later` (not in this release yet), `own` (of this project, whose image has it beside Bridge's), and rare
settings: `optimizer=`, `first=` and `last=` (layers of these stages), `account` (embedding and loss count as
layers), `split=` (pipelineModelParallelLayout), `decay=` (lrDecayIters, where it differs from the length),
`weight-decay=` (where it is not WEIGHT_DECAY), `beta2=` (adamBeta2, where those of an entry differ),
`rank=`, `alpha=` and `targets=` (of LoRA; by default all linear layers). `performance_options` has those that
make a function fast.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from megatron_operator.catalog import performance_options

RELEASE: Final = "0.6.2"
"""Release of megatron-bridge that the tables are tested against."""
WEIGHT_DECAY: Final = 0.033
"""What most functions train with: that of their scheduler, which replaces their optimizer's (0.1)."""

_PARALLELISM: Final = {
    "tp": "tensorModelParallelSize",
    "pp": "pipelineModelParallelSize",
    "vp": "numVirtualStagesPerPipelineRank",
    "cp": "contextParallelSize",
    "ep": "expertModelParallelSize",
    "etp": "expertTensorParallelSize",
}
_TRAINING: Final = {
    "mbs": "microBatchSize",
    "gbs": "globalBatchSize",
    "seq": "seqLength",
    "warm-up": "lrWarmupIters",
    "steps": "trainIters",
}
_LORA: Final = {"rank": "loraRank", "alpha": "loraAlpha"}
_RATES: Final = {"lr": "lr", "min-lr": "minLr"}
_OF_OPTIMIZER: Final = {"weight-decay": "weightDecay", "beta2": "adamBeta2"}
COLUMNS: Final = (
    *("function", "on", "precision"),
    *(*_PARALLELISM, "sp"),
    *("mbs", "gbs", "seq", "lr", "min-lr", "warm-up", "steps"),
)

PRECISIONS: Final[Mapping[str, Mapping[str, Any]]] = {
    "bf16": {"bf16": True},
    "fp8ds": {"bf16": True, "fp8Format": "hybrid", "fp8Recipe": "delayed"},
    "fp8cs": {"bf16": True, "fp8Format": "hybrid", "fp8Recipe": "tensorwise"},
    "fp8mx": {"bf16": True, "fp8Format": "e4m3", "fp8Recipe": "mxfp8"},
    "fp8sc": {"bf16": True, "fp8Format": "e4m3", "fp8Recipe": "blockwise"},
    "nvfp4": {"bf16": True, "fp4Format": "e2m1"},
}
"""Precision as Bridge names it -> Megatron's settings."""

_HARDWARE: Final = {"h100": ["h100-sxm", "h200"]}
"""Bridge's name -> the planner's, where they differ. What fits 80 GB also fits an H200's 141 GB."""

WITHOUT_DATA_SHEET: Final = frozenset({"r100", "vr200"})
"""Hardware of functions that is missing from the planner: no public data sheet yet."""


def layouts(table: str) -> Iterator[dict[str, Any]]:
    """The layouts of a table, in the wire form of `PublishedLayout`.

    Raises ValueError with the invalid line.
    """
    lines = [line.split() for line in table.splitlines() if line.strip()]
    if not lines or tuple(lines[0]) != COLUMNS:
        raise ValueError(f"the first line is not: {' '.join(COLUMNS)}")
    if len(lines) == 1:
        raise ValueError("no function")
    for words in lines[1:]:
        if len(words) < len(COLUMNS):
            raise ValueError(f"{words[0]} has {len(words)} of {len(COLUMNS)} columns")
        try:
            yield _layout(dict(zip(COLUMNS, words, strict=False)), words[len(COLUMNS) :])
        except (KeyError, ValueError) as error:
            raise ValueError(f"{words[0]}: {error}") from None


def _layout(cells: Mapping[str, str], further: list[str]) -> dict[str, Any]:
    count, _, hardware = cells["on"].partition("x")
    parallelism: dict[str, Any] = {
        leaf: int(cells[column]) for column, leaf in _PARALLELISM.items() if cells[column] != "-"
    }
    if cells["sp"] == "1":
        parallelism["sequenceParallel"] = True
    training: dict[str, Any] = dict(PRECISIONS[cells["precision"]])
    training |= {leaf: int(cells[column]) for column, leaf in _TRAINING.items() if cells[column] != "-"}
    training |= {leaf: float(cells[column]) for column, leaf in _RATES.items() if cells[column] != "-"}
    bare = [word for word in further if "=" not in word]
    options = dict(word.split("=", 1) for word in further if "=" in word)
    if "optimizer" in options:
        training["optimizer"] = options.pop("optimizer")
    for word, leaf in (("first", "decoderFirstPipelineNumLayers"), ("last", "decoderLastPipelineNumLayers")):
        if word in options:
            parallelism[leaf] = int(options.pop(word))
    if "account" in bare:
        parallelism |= {"accountForEmbeddingInPipelineSplit": True, "accountForLossInPipelineSplit": True}
    training |= {leaf: float(options.pop(word)) for word, leaf in _OF_OPTIMIZER.items() if word in options}
    if "decay" in options:
        training["lrDecayIters"] = int(options.pop("decay"))
    if "split" in options:
        parallelism["pipelineModelParallelLayout"] = options.pop("split")
    also = options.pop("also", "")
    lora: dict[str, Any] = {leaf: int(options.pop(word)) for word, leaf in _LORA.items() if word in options}
    if "targets" in options:
        lora["loraTargets"] = options.pop("targets").split(",")
    fast = performance_options.settings(bare, options, cells["precision"])
    unknown = [
        *options,
        *({*bare} - {"account", "benchmark", "least", "later", "own"} - performance_options.BARE),
    ]
    if unknown:
        raise ValueError(f"{', '.join(unknown)} is not an option of this table")
    release = "after " * ("later" in bare) + RELEASE
    kind = " (benchmark)" if "benchmark" in bare else ""
    origin = f"Megatron Bridge {release}"
    if "own" in bare:
        origin = f"This project, as {origin}" if "later" in bare else f"This project, for {origin}"
    least = ", which gives no count: the smallest for its sizes" if "least" in bare else ""
    return lora | {
        "function": cells["function"],
        "alsoNamed": also.split(",") if also else None,
        "precision": cells["precision"],
        "benchmark": True if "benchmark" in bare else None,
        "later": True if "later" in bare else None,
        "own": True if "own" in bare else None,
        "accelerators": _HARDWARE.get(hardware, [hardware]),
        "count": int(count),
        "parallelism": parallelism | fast.parallelism,
        "training": training | fast.training,
        "megatronArgs": fast.megatron_args or None,
        "leftOut": fast.left_out or None,
        "source": f"{origin}, {cells['function']}{kind}{least}",
    }
