"""Small models that read more than text: weights in and out, and Megatron's model of a checkpoint."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from testkit.weights.loading import load, load_adapters

type Compare = Callable[[Path, Path, Path], dict[str, Any]]
"""Compares a checkpoint (the last path) with a folder of transformers (the second), beside the base model."""


def prove(
    write: Callable[[Path, str], Any], compare: Compare, folder: Path, *, beside_base: bool = False
) -> dict[str, Any]:
    """Import and export a model that `write` writes, and compare its logits.

    `beside_base`: the export takes what Megatron does not build from the model's folder.

    Returns what `compare` does, the number of tensors, and whether the exported ones are those of the model.
    """
    from megatron_trainer.weights import checkpoint, conversion, huggingface_folder
    from megatron_trainer.weights.tensors import records

    source, imported, exported = folder / "model", folder / "imported", folder / "exported"
    write(source, "float32")
    conversion.import_weights(source, imported)
    found = compare(source, source, checkpoint.find(imported, "--from"))
    conversion.export_weights(imported, exported, source if beside_base else None)
    tensors = [records(huggingface_folder.read(x, "", weights=True).tensors()) for x in (source, exported)]
    return found | {"tensors": len(tensors[0]), "identical files": tensors[0] == tensors[1]}


def prove_run(compare: Compare, run: Path, base: Path, exported: Path) -> dict[str, Any]:
    """Compare what a run trained, or its adapters beside the weights of `base`, with what was exported."""
    from megatron_trainer.weights import checkpoint

    return compare(base, exported, checkpoint.find(run, "--from"))


def loaded(base: Path, directory: Path) -> Any:
    """Return Megatron's model of a checkpoint in float32, or of adapters beside the weights of `base`.

    Call it in cpu_model.one_process, without gradients.
    """
    from megatron_trainer.weights import adapters, checkpoint, conversion, cpu_model, huggingface_folder

    read = huggingface_folder.read(base, "--base", weights=True)
    bridge = cpu_model.make_bridge(read)
    megatron = cpu_model.make_model(bridge, "float32")
    if adapters.present(directory):
        weights = conversion.weights_of(bridge, megatron, read)
        for name, tensor in checkpoint.tensors(megatron):
            tensor.copy_(weights(name))
        load_adapters(directory, megatron)
    else:
        load(directory, megatron)
    return megatron
