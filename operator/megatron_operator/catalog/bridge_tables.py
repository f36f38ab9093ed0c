"""Tables of Megatron-Bridge's recipe functions: one line a function, as its ConfigContainer has it.

    function                                  on     precision  tp pp vp cp ep etp sp  mbs  gbs  seq  lr ...
    llama3_8b_pretrain_2gpu_h100_bf16_config  2xh100 bf16        1  1  -  2  1   -  0    1  512 8192  ...

`-` is not set. Behind the last column come words: `also=NAME` (other names of the function), `benchmark`
(made to measure throughput, on random data), `least` (the function names no count: the fewest that hold its
sizes), `later` (not in this release yet), and what few functions set: `optimizer=`, `first=` and `last=`
(layers of these stages), `account` (embedding and loss counted as layers), `split=`
(pipelineModelParallelLayout), `decay=` (lrDecayIters, where it is not the length), `rank=` and `alpha=` (of
LoRA).
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

RELEASE: Final = "0.6.2"
"""Of megatron-bridge: what the tables are held against."""

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
    "nvfp4": {"bf16": True},
}
"""Bridge's words -> Megatron's settings. NVFP4 has none that is typed."""

_HARDWARE: Final = {"h100": ["h100-sxm", "h200"]}
"""Bridge's name -> the planner's, where they differ. What runs in 80 GB runs in an H200's 141 GB."""

WITHOUT_DATA_SHEET: Final = frozenset({"r100", "vr200"})
"""Hardware of functions that the planner does not know: no public data sheet yet."""


def layouts(table: str) -> Iterator[dict[str, Any]]:
    """The layouts of a table, in the wire form of `Layout`. Raises ValueError with the line that is wrong."""
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
    said = dict(word.split("=", 1) for word in further if "=" in word)
    if "optimizer" in said:
        training["optimizer"] = said.pop("optimizer")
    for word, leaf in (("first", "decoderFirstPipelineNumLayers"), ("last", "decoderLastPipelineNumLayers")):
        if word in said:
            parallelism[leaf] = int(said.pop(word))
    if "account" in bare:
        parallelism |= {"accountForEmbeddingInPipelineSplit": True, "accountForLossInPipelineSplit": True}
    if "decay" in said:
        training["lrDecayIters"] = int(said.pop("decay"))
    if "split" in said:
        parallelism["pipelineModelParallelLayout"] = said.pop("split")
    also = said.pop("also", "")
    lora = {leaf: int(said.pop(word)) for word, leaf in _LORA.items() if word in said}
    unknown = [*said, *({*bare} - {"account", "benchmark", "least", "later"})]
    if unknown:
        raise ValueError(f"{', '.join(unknown)} is no word of this table")
    release = "after " * ("later" in bare) + RELEASE
    kind = " (benchmark)" if "benchmark" in bare else ""
    least = ", which names no count: the fewest that hold its sizes" if "least" in bare else ""
    return lora | {
        "function": cells["function"],
        "alsoNamed": also.split(",") if also else None,
        "precision": cells["precision"],
        "benchmark": True if "benchmark" in bare else None,
        "accelerators": _HARDWARE.get(hardware, [hardware]),
        "count": int(count),
        "parallelism": parallelism,
        "training": training,
        "source": f"Megatron Bridge {release}, {cells['function']}{kind}{least}",
    }
