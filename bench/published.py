"""Published throughput measurements, as workloads of the planner."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from megatron_operator.api.diagnostics import Diagnostics
from megatron_operator.api.parallel_dims import ParallelDims
from megatron_operator.catalog.architecture import Architecture
from megatron_operator.planner.estimate import hardware
from megatron_operator.planner.estimate.hardware import Accelerator
from megatron_operator.planner.estimate.model_shape import ModelShape, model_shape
from megatron_operator.planner.estimate.parameters import flops_per_token
from megatron_operator.planner.estimate.workload import Execution, Numerics, Recomputation, Workload
from megatron_operator.planner.search.pipeline_split import automatic_split

FILE = Path(__file__).parent / "data" / "published.yaml"

_GPT = {"vocabSize": 131072, "maxPositionEmbeddings": 4096}
_LONG = 8192
"""Sequences longer than this number of tokens are part of a run's name."""
_OF_THE_EXCHANGE = ("flex", "epOverlap", "partialGraphs", "graphs")
"""Switches of models with experts that are part of a run's name."""
_OTHERS = {
    "hiddenDropout": 0.0,
    "maxPositionEmbeddings": 8192,
    "positionEmbeddingType": "rope",
    "normalization": "RMSNorm",
    "swiglu": True,
    "disableBiasLinear": True,
    "untieEmbeddingsAndOutputWeights": True,
}


@dataclass(frozen=True, slots=True)
class Measurement:
    """One measured run."""

    name: str
    """Model, accelerators, precision and layout in one line."""
    part: str
    """`calibration`, `held-out` or `added later`."""
    source: str
    workload: Workload
    accelerator: Accelerator
    tokens_per_second_per_gpu: float
    """As published, or derived from the published time or FLOP/s."""


@cache
def document() -> dict[str, Any]:
    """The parsed file."""
    loaded: dict[str, Any] = yaml.safe_load(FILE.read_text())
    return loaded


def measurements() -> list[Measurement]:
    """All measurements, in the order of the file. Raises ValueError for an inconsistent one."""
    read = document()
    models = {name: shape_of(name, sizes) for name, sizes in read["models"].items()}
    return [_measurement(entry, models[entry["model"]]) for entry in read["measurements"]]


def shape_of(name: str, sizes: Mapping[str, Any]) -> ModelShape:
    """The model of a name with its sizes. Raises ValueError for inconsistent sizes."""
    family = _GPT if name.startswith("gpt-") and "numExperts" not in sizes else _OTHERS
    found = Diagnostics()
    built = model_shape(Architecture.model_validate({**family, **sizes}), found)
    if built is None:
        raise ValueError(f"{FILE}: model {name}: {'; '.join(map(str, found.errors))}")
    return built


def _measurement(entry: Mapping[str, Any], shape: ModelShape) -> Measurement:
    accelerator = hardware.get(entry["accelerator"])
    if accelerator is None:
        raise ValueError(f"{FILE}: {entry['accelerator']} is not in the table of accelerators")
    w = workload_of(entry, shape)
    tokens = w.seq_length * entry["gbs"] / entry["count"]
    if "tokens" in entry:
        published = float(entry["tokens"])
    elif "seconds" in entry:
        published = tokens / entry["seconds"]
    else:
        published = entry["tflops"] * 1e12 / _flops(w, entry["flops"])
    return Measurement(
        name=name_of(entry),
        part=entry["part"],
        source=entry["source"],
        workload=w,
        accelerator=accelerator,
        tokens_per_second_per_gpu=published,
    )


def _flops(w: Workload, counted: str) -> float:
    """FLOPs per token; `full` includes the masked half of attention, as Megatron did before 0.13."""
    vocabulary = w.shape.padded_vocab(w.dims.tp)
    causal = flops_per_token(w.shape, w.seq_length, vocabulary)
    if counted == "causal":
        return causal
    return 2 * causal - flops_per_token(w.shape, 0, vocabulary)


def workload_of(entry: Mapping[str, Any], shape: ModelShape) -> Workload:
    """The workload of an entry. Raises ValueError where layers or batch do not divide."""
    sizes = ParallelDims(**{name: entry.get(name, 1) for name in ("tp", "pp", "cp", "ep", "vp")})
    dims = replace(sizes, dp=entry["count"] // sizes.model_parallel)
    split = automatic_split(shape.layers, dims.pp)
    layers = entry.get("layers") or (split.layers if split else None)
    if layers is None or entry["gbs"] % (entry["mbs"] * dims.dp):
        raise ValueError(f"{FILE}: {name_of(entry)}: layers or batch do not divide")
    flags = set(entry.get("with", ()))
    full, modules = entry.get("full"), entry.get("selective")
    return Workload(
        shape=shape,
        dims=dims,
        seq_length=entry["seq"],
        micro_batch=entry["mbs"],
        micro_batches=entry["gbs"] // (entry["mbs"] * dims.dp),
        stage_layers=tuple(layers),
        sequence_parallel="noSequenceParallel" not in flags,
        numerics=_numerics(entry),
        recompute=Recomputation("full", "uniform", full)
        if full
        else Recomputation("selective" if modules else None, modules=frozenset(modules or ())),
        execution=Execution(
            unfused_attention="unfused" in flags,
            tensor_overlap="tpOverlap" in flags,
            expert_overlap="epOverlap" in flags,
            deduplicated_dispatch="flex" in flags,
            fused_experts="opFuser" in flags,
            graphs="full" if "graphs" in flags else "partial" if "partialGraphs" in flags else "none",
        ),
    )


def _numerics(entry: Mapping[str, Any]) -> Numerics:
    """Megatron-Bridge's performance recipes reduce gradients in BF16 and gather FP8 weights in FP8."""
    gradient, copies = (2, 4) if entry["source"].startswith("bridge") else (4, 0)
    if entry["precision"] == "bf16":
        return Numerics(gradient=gradient, gradient_copies=copies)
    scaled = entry["precision"] == "mxfp8"
    if entry["precision"] == "nvfp4":
        return Numerics(gradient=gradient, gradient_copies=copies, fp8=True, fp4=True, fp8_copies=2)
    return Numerics(
        gradient=gradient, gradient_copies=copies, fp8=True, block_scaled=scaled, gathered_weight=1
    )


def name_of(entry: Mapping[str, Any]) -> str:
    """Model, accelerators, precision and layout in one line, with what distinguishes runs of one layout."""
    sizes = [f"{key.upper()}{entry[key]}" for key in ("tp", "pp", "vp", "cp", "ep") if entry.get(key, 1) > 1]
    words = [entry["model"], f"{entry['count']} x {entry['accelerator']}", entry["precision"], *sizes]
    if "full" in entry:
        words.append("full recomputation")
    if entry["seq"] > _LONG:
        words.append(f"{entry['seq']:,} tokens")
    words += [f"+{name}" for name in entry.get("with", ()) if name in _OF_THE_EXCHANGE]
    return " ".join(words)
