"""Imports and exports weights, and audits both, one tensor in memory at a time.

The models here are never filled: they give names, shapes, and the mappings between two layouts.
"""

import dataclasses
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from megatron_trainer.weights import (
    adapters,
    checkpoint,
    cpu_model,
    destination,
    huggingface_folder,
    tied_values,
    untrained_parts,
)
from megatron_trainer.weights.audit import DEQUANTIZED, Audit, Tie, check_tie, compare, imported_headers
from megatron_trainer.weights.conversion_error import AuditError, ConversionError
from megatron_trainer.weights.huggingface_folder import HuggingFaceFolder
from megatron_trainer.weights.meter import Meter, sizes
from megatron_trainer.weights.tensors import TensorRecord, TensorSource, records

OUTPUT_LAYERS = (
    *("lm_head.weight", "language_model.lm_head.weight", "thinker.lm_head.weight"),
    "head.weight",
)
"""Its names in folders of Hugging Face."""
_SHARED = {
    "model.embed_tokens.weight": re.compile(r"model\.layers\.\d+\.embed_tokens\.weight"),
    OUTPUT_LAYERS[0]: re.compile(r"model\.layers\.\d+\.shared_head\.head\.weight"),
}
"""Tensor -> its copies in layers of multi-token prediction, which share it in Megatron."""


def import_weights(source: Path, target: Path, meter: Meter | None = None) -> Audit:
    """Convert a Hugging Face folder to a checkpoint. Raises ConversionError, AuditError with nothing left."""
    destination.check(target)
    folder = untrained_parts.without(huggingface_folder.read(source, "--from", weights=True))
    bridge = cpu_model.make_bridge(folder)
    with destination.building(target) as part, cpu_model.one_process():
        model = cpu_model.make_model(bridge, folder.dtype)
        meter = meter or Meter()
        meter.begin("convert", _sizes(model))
        weights = meter.counted(weights_of(bridge, model, folder))
        checkpoint.save(model, weights, bridge, folder.dtype, part)
        checkpoint.write_source(source, part)
        return finish(audit_import(folder, bridge, part, meter), part)


@dataclass(frozen=True)
class _Exportable:
    """A model to export, with what describes it."""

    model: Any
    weights: TensorSource
    bridge: Any
    base: HuggingFaceFolder
    dtype: str
    conversion: str
    details: dict[str, Any]


def export_weights(source: Path, target: Path, base: Path | None, meter: Meter | None = None) -> Audit:
    """Convert a checkpoint to a Hugging Face folder. Raises ConversionError, AuditError with nothing left.

    `base` has the configuration and the tokenizer; without it those that the import kept are taken. Adapters
    are merged into the checkpoint that they were trained on; where that is gone, into the weights of `base`.
    """
    destination.check(target)
    directory = checkpoint.find(source, "--from")
    folder = _base(source, base)
    untrained_parts.require(folder)
    with destination.building(target) as part, cpu_model.one_process():
        read = _open(directory, folder)
        huggingface_folder.copy_small_files(folder.path, part)
        huggingface_folder.set_dtype(part, read.dtype)
        meter = meter or Meter()
        meter.begin("convert", _sizes(read.model))
        weights = meter.counted(read.weights)
        tensors = exported(read.bridge, read.model, weights, folder)
        huggingface_folder.write_weights(part, chain(tensors, untrained_parts.tensors(folder)))
        return finish(_audit_export(read, part, meter), part)


def _open(directory: Path, folder: HuggingFaceFolder) -> _Exportable:
    bridge = cpu_model.make_bridge(folder)
    if not adapters.present(directory):
        dtype = checkpoint.dtype(directory)
        model = cpu_model.make_model(bridge, dtype)
        weights = tied_values.follow_keys(model, checkpoint.source(directory, model))
        return _Exportable(model, weights, bridge, folder, dtype, "export", {})
    frozen = adapters.frozen_weights(directory, folder)
    dtype = folder.dtype if frozen is None else checkpoint.dtype(frozen)
    model, adapted = (cpu_model.make_model(bridge, dtype) for _ in range(2))
    below = weights_of(bridge, model, folder) if frozen is None else checkpoint.source(frozen, model)
    weights, details = adapters.merged(adapted, below, directory)
    weights = tied_values.follow_keys(model, weights)
    return _Exportable(model, weights, bridge, folder, dtype, "merge", details)


def audit(source: Path, target: Path, base: Path | None, meter: Meter | None = None) -> Audit:
    """Compare what a conversion read with what it wrote; neither is changed.

    Raises ConversionError, also if the base of an export lacks weights that the export took from it.
    """
    meter = meter or Meter()
    kinds = [huggingface_folder.is_folder(folder) for folder in (source, target)]
    if kinds == [False, False]:
        raise ConversionError(f"neither {source} nor {target} is a Hugging Face folder with config.json")
    if kinds == [True, True]:
        before = records(huggingface_folder.read(source, "--from", weights=True).tensors())
        after = records(huggingface_folder.read(target, "--to", weights=True).tensors())
        return Audit("copy", "huggingFace", before, compare(before, after))
    if kinds == [True, False]:
        folder = untrained_parts.without(huggingface_folder.read(source, "--from", weights=True))
        with cpu_model.one_process():
            return audit_import(folder, cpu_model.make_bridge(folder), target, meter)
    directory = checkpoint.find(source, "--from")
    folder = _base(source, base)
    untrained_parts.require(folder)
    with cpu_model.one_process():
        return _audit_export(_open(directory, folder), target, meter)


def finish(audit: Audit, part: Path) -> Audit:
    """Write a passed audit beside the weights. Raises AuditError for a failed one."""
    if not audit.passed:
        raise AuditError(audit.summary())
    audit.write(part)
    return audit


def _base(source: Path, base: Path | None) -> HuggingFaceFolder:
    if base is not None:
        return huggingface_folder.read(base, "--base", weights=False)
    kept = checkpoint.kept_source(source)
    if kept is None:
        raise ConversionError(
            f"--from {source} was written by a run and does not keep the model's config.json and tokenizer; "
            "give the Hugging Face folder that it began with: --base FOLDER"
        )
    folder = huggingface_folder.read(kept, "--from", weights=False)
    return replace(folder, headers=imported_headers(source))


def weights_of(bridge: Any, model: Any, folder: HuggingFaceFolder) -> TensorSource:
    """Return what makes the model's tensors of a folder's. Raises ConversionError unless it has them all."""
    from megatron_trainer.weights.folder_tensors import FolderTensors

    return FolderTensors(bridge, model, folder)


def exported(
    bridge: Any, model: Any, weights: TensorSource, folder: HuggingFaceFolder
) -> Iterator[tuple[str, Any]]:
    """Yield the weights of a model under the names of Hugging Face, in the dtypes of the folder's."""
    tied = folder.tied
    tasks = (
        dataclasses.replace(task, param_weight=weights(task.param_name))
        for task in bridge._model_bridge.build_conversion_tasks(bridge.hf_pretrained, [model])
        if task is not None and task.megatron_module is not None
    )
    named = bridge.export_hf_weights([model], cpu=True, show_progress=False, conversion_tasks=tasks)
    for name, tensor in huggingface_folder.conform(named, folder.headers):
        # transformers does not write it either.
        if not (tied and name in OUTPUT_LAYERS and name not in folder.headers):
            yield name, tensor
        if name in _SHARED:
            yield from ((copy, tensor) for copy in folder.headers if _SHARED[name].fullmatch(copy))


def audit_import(folder: HuggingFaceFolder, bridge: Any, target: Path, meter: Meter) -> Audit:
    """Read the written checkpoint by another model and compare its export with the source, bit for bit."""
    model = cpu_model.make_model(bridge, folder.dtype)
    meter.begin("audit", _sizes(model), sizes(folder.headers))
    weights = meter.counted(checkpoint.source(checkpoint.find(target, "--to"), model))
    found = records(exported(bridge, model, weights, folder))
    expected = records(meter.watched(folder.tensors()))
    tie = Tie(folder.tied, bool(model.share_embeddings_and_output_weights))
    problems = [*compare(_without_tied_copy(expected, found, tie), found), *check_tie(tie)]
    details = {DEQUANTIZED: sorted(folder.stored)} if folder.stored else {}
    return Audit("import", "huggingFace", expected, problems, tie, details)


def _without_tied_copy(
    expected: dict[str, TensorRecord], found: dict[str, TensorRecord], tie: Tie
) -> dict[str, TensorRecord]:
    """Leave out an output layer of the source that equals the embedding which it is tied to."""
    if not tie.expected:
        return expected
    copies = [
        name
        for name, record in expected.items()
        if name in OUTPUT_LAYERS and name not in found and record in found.values()
    ]
    return {name: record for name, record in expected.items() if name not in copies}


def _audit_export(read: _Exportable, target: Path, meter: Meter) -> Audit:
    """Convert the written folder to Megatron's layout and compare it with what was exported, bit for bit."""
    folder = huggingface_folder.read(target, "--to", weights=True)
    bridge = cpu_model.make_bridge(folder)
    model = cpu_model.make_model(bridge, read.dtype)
    meter.begin("audit", _sizes(read.model), _sizes(model), sizes(folder.headers))
    expected = _records_of(read.model, meter.counted(read.weights))
    found = _records_of(model, meter.counted(weights_of(bridge, model, folder)))
    tie = Tie(folder.tied, not any(name in folder.headers for name in OUTPUT_LAYERS))
    problems = [*compare(expected, found), *_compare_with_base(folder, read.base), *check_tie(tie)]
    written = records(meter.watched(folder.tensors()))
    kept = records(untrained_parts.tensors(read.base))
    problems += compare(kept, {name: written[name] for name in kept.keys() & written.keys()})
    result = {name: record.to_json() for name, record in sorted(written.items())}
    return Audit(read.conversion, "megatron", expected, problems, tie, {**read.details, "result": result})


def _sizes(model: Any) -> dict[str, int]:
    """Return the bytes of the tensors of a model, by name."""
    return {name: tensor.nbytes for name, tensor in checkpoint.tensors(model)}


def _records_of(model: Any, weights: TensorSource) -> dict[str, TensorRecord]:
    """Compute the records of all tensors of a model."""
    return records((name, weights(name)) for name, _ in checkpoint.tensors(model))


def _compare_with_base(folder: HuggingFaceFolder, base: HuggingFaceFolder) -> list[str]:
    """Return one line per tensor whose name or shape differs from the base's, if that has weights."""
    source = {name: header.shape for name, header in base.headers.items()}
    result = {name: header.shape for name, header in folder.headers.items()}
    if not source:
        return []
    if folder.tied:
        for name in OUTPUT_LAYERS:
            source.pop(name, None)
    problems = [f"{name} of the base is missing" for name in sorted(source.keys() - result.keys())]
    problems += [f"{name} is not in the base" for name in sorted(result.keys() - source.keys())]
    return problems + [
        f"{name} has shape {list(result[name])}, in the base {list(source[name])}"
        for name in sorted(source.keys() & result.keys())
        if source[name] != result[name]
    ]
