"""One proof: a small model in, the same logits, out again bit for bit."""

import argparse
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from testkit.weights.families import Family, by_name, write_model
from testkit.weights.loading import load, load_adapters

_UNSHARDED = (
    *("--tensor-model-parallel-size", "1", "--pipeline-model-parallel-size", "1"),
    *("--expert-model-parallel-size", "1"),
)


@dataclass(frozen=True)
class Proof:
    """What was measured. Logits are those of float32 models, over 32 positions."""

    tensors: int
    """Number of tensors of the source."""
    largest_difference: float
    """Largest absolute difference of two logits."""
    largest_logit: float
    """Largest absolute logit of transformers' model."""
    cosine: float
    """Cosine of the angle between both models' logits; 1 for equal ones."""
    identical_files: bool
    """Whether export after import gave every tensor of the source, bit for bit, and no other."""
    progress: list[tuple[str, int, int, int, int]]
    """Of each step of import and export when it ended: its name, tensors and bytes, done and total."""


def prove(family: Family, folder: Path, dtype: str = "float32") -> Proof:
    """Run the proof in `folder`. Raises ConversionError or AuditError if the family does not convert."""
    import torch
    from megatron_trainer.weights import checkpoint, conversion, cpu_model, huggingface_folder
    from megatron_trainer.weights.meter import Meter
    from megatron_trainer.weights.tensors import records

    source, imported, exported = folder / "source", folder / "imported", folder / "exported"
    model = write_model(family, source, dtype)
    steps: list[tuple[str, int, int, int, int]] = []

    class RecordedMeter(Meter):
        def begin(self, step: str, *passes: Mapping[str, int]) -> None:
            self.end()
            super().begin(step, *passes)

        def end(self) -> None:
            if (last := self.report().conversion) is not None:
                bytes_of = last.bytes_done, last.bytes_total
                steps.append((last.step, last.tensors_done, last.tensors_total, *bytes_of))

    meters = RecordedMeter(), RecordedMeter()
    audit = conversion.import_weights(source, imported, meters[0])
    meters[0].end()
    read = huggingface_folder.read(source, "--from", weights=True)
    ids = (torch.arange(32) * 7 % 250)[None]
    with cpu_model.one_process(), torch.no_grad():
        bridge = cpu_model.make_bridge(read)
        megatron = cpu_model.make_model(bridge, dtype)
        load(checkpoint.find(imported, "--from"), megatron)
        found = megatron(ids, torch.arange(32)[None], None).double()
        expected = model(ids).logits.double()
    conversion.export_weights(imported, exported, None, meters[1])
    meters[1].end()
    result = huggingface_folder.read(exported, "--to", weights=True)
    return Proof(
        len(audit.tensors),
        float((found - expected).abs().max()),
        float(expected.abs().max()),
        float(torch.nn.functional.cosine_similarity(found.flatten(), expected.flatten(), dim=0)),
        records(read.tensors()) == records(result.tensors()),
        steps,
    )


def prove_by_name(name: str, dtype: str, folder: Path) -> dict[str, Any]:
    """Return the figures of a proof, or why there are none; also for families that are refused."""
    from megatron_trainer.weights import cpu_model
    from megatron_trainer.weights.conversion_error import AuditError, ConversionError

    family = by_name(name)
    refused = family.architecture not in cpu_model.CONVERTS
    if refused:
        cpu_model.CONVERTS = (*cpu_model.CONVERTS, family.architecture)
    try:
        return asdict(prove(family, folder, dtype)) | {"refused": refused}
    except (ConversionError, AuditError) as error:
        return {"error": str(error).replace(str(folder), ""), "refused": refused}


def _reference(folder: Path) -> Any:
    """The model of transformers in a folder, in float32."""
    import torch
    import transformers

    from testkit.weights import llama_nemotron_model, step_model

    llama_nemotron_model.install()
    step_model.install()
    settings = json.loads((folder / "config.json").read_text())
    kind: Any = transformers.AutoModelForCausalLM
    if alias := _ALIASES.get(settings["model_type"]):
        kind = getattr(transformers, f"{alias}ForCausalLM")
        config = getattr(transformers, f"{alias}Config")(
            **settings | {"model_type": kind.config_class.model_type}
        )
        return kind.from_pretrained(
            folder, config=config, dtype=torch.float32, attn_implementation="eager"
        ).eval()
    return kind.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


_ALIASES = {"kimi_k2": "DeepseekV3", "mimo": "Qwen2"}
"""`model_type` of config.json -> prefix of the classes of transformers with its layers."""


def merged_logits(adapters: Path, source: Path, exported: Path) -> dict[str, float]:
    """Compare Megatron with adapters beside its weights to transformers, with merged weights and the base's.

    Returns the largest absolute differences of logits, in float32, by what is compared.
    """
    import torch
    from megatron_trainer.weights import checkpoint, conversion, cpu_model, huggingface_folder

    ids = (torch.arange(32) * 7 % 250)[None]
    folder = huggingface_folder.read(source, "--base", weights=True)
    with cpu_model.one_process(), torch.no_grad():
        bridge = cpu_model.make_bridge(folder)
        model = cpu_model.make_model(bridge, "float32")
        weights = conversion.weights_of(bridge, model, folder)
        for name, tensor in checkpoint.tensors(model):
            tensor.copy_(weights(name))
        load_adapters(checkpoint.find(adapters, "--from"), model)
        found = model(ids, torch.arange(32)[None], None)
        differences = {}
        for name, path in (("merged", exported), ("unmerged", source)):
            differences[name] = float((found - _reference(path)(ids).logits).abs().max())
    return differences


def trained_logits(run: Path, exported: Path) -> dict[str, float]:
    """Compare Megatron with the weights of a run to transformers with the exported ones, in float32.

    Returns the largest absolute difference of logits over 32 positions.
    """
    import torch
    from megatron_trainer.weights import checkpoint, cpu_model, huggingface_folder

    ids = (torch.arange(32) * 7 % 250)[None]
    folder = huggingface_folder.read(exported, "--base", weights=True)
    with cpu_model.one_process(), torch.no_grad():
        model = cpu_model.make_model(cpu_model.make_bridge(folder), "float32")
        load(checkpoint.find(run, "--from"), model)
        found = model(ids, torch.arange(32)[None], None)
        return {"difference": float((found - _reference(exported)(ids).logits).abs().max())}


def loss(folder: Path, ids: list[int]) -> float:
    """Return the mean loss of transformers' model in a folder over these ids, but for the first."""
    import torch

    tokens = torch.tensor([ids])
    with torch.no_grad():
        logits = _reference(folder)(tokens[:, :-1]).logits[0]
    return float(torch.nn.functional.cross_entropy(logits, tokens[0, 1:]))


def logits_of_run(words: list[str], run: Path, exported: Path) -> dict[str, float]:
    """Compare the model that Megatron's own loop builds of a run's arguments with the exported one.

    Returns the largest difference of logits over 32 positions, and the largest logit of transformers.
    """
    import torch
    from megatron.core.process_groups_config import ProcessGroupCollection
    from megatron.training import arguments
    from megatron.training.models.gpt import GPTModelBuilder
    from megatron_trainer.weights import checkpoint, cpu_model
    from megatron_trainer.worker import gpt

    parser = arguments.add_megatron_arguments(argparse.ArgumentParser(allow_abbrev=False))
    args = parser.parse_args([*words, *_UNSHARDED])
    args.rank, args.world_size = 0, 1
    arguments.validate_args(args)
    ids = (torch.arange(32) * 7 % 250)[None]
    with cpu_model.one_process(), torch.no_grad():
        groups = ProcessGroupCollection.use_mpu_process_groups()
        model = GPTModelBuilder(gpt.model_config(args)).build_model(groups).eval()
        load(checkpoint.find(run, "--from"), model)
        found = model(ids, torch.arange(32)[None], None)
        expected = _reference(exported)(ids).logits
    found = found[..., : expected.shape[-1]]
    return {"difference": float((found - expected).abs().max()), "largest": float(expected.abs().max())}


def prove_padded(folder: Path) -> bool:
    """Whether 250 rows of vocabulary come back from a run that pads them to 256."""
    from unittest import mock

    import torch
    from megatron_trainer.weights import checkpoint, conversion, cpu_model, huggingface_folder
    from megatron_trainer.weights.tensors import records

    source, imported, padded, exported = (folder / name for name in ("source", "imported", "padded", "out"))
    llama = by_name("Llama")
    write_model(replace(llama, sizes={**llama.sizes, "vocab_size": 250}), source)
    conversion.import_weights(source, imported)
    read = huggingface_folder.read(source, "--from", weights=True)
    unpadded = cpu_model.make_provider

    def provider(bridge: Any, dtype: str) -> Any:
        made = unpadded(bridge, dtype)
        made.should_pad_vocab, made.make_vocab_size_divisible_by = True, 128
        return made

    with cpu_model.one_process(), torch.no_grad():
        bridge = cpu_model.make_bridge(read)
        model = cpu_model.make_model(bridge, "float32")
        load(checkpoint.find(imported, "--from"), model)
        with mock.patch.object(cpu_model, "make_provider", provider):
            larger = cpu_model.make_model(bridge, "float32")
            values = dict(checkpoint.tensors(larger))
            for name, value in checkpoint.tensors(model):
                values[name][: len(value)] = value
            padded.mkdir()
            checkpoint.save(larger, values.__getitem__, bridge, "float32", padded)
    shapes = checkpoint.names(checkpoint.find(padded, "--from"))
    conversion.export_weights(padded, exported, source)
    found = records(huggingface_folder.read(exported, "--to", weights=True).tensors())
    return shapes["output_layer.weight"][0] == 256 and found == records(read.tensors())


def prove_written(name: str, folder: Path) -> bool:
    """Whether an imported checkpoint has the bytes that Megatron's own writer gives its model."""
    import queue

    import torch
    from megatron.core import dist_checkpointing
    from megatron.core.dist_checkpointing.strategies import filesystem_async
    from megatron_trainer.checkpoints import selection
    from megatron_trainer.weights import checkpoint, conversion, cpu_model, huggingface_folder

    source, imported, filled = folder / "source", folder / "imported", folder / "filled"
    write_model(by_name(name), source)
    conversion.import_weights(source, imported)
    read = huggingface_folder.read(source, "--from", weights=True)
    # By default the results of writers come through a process, which imports everything again.
    filesystem_async._results_queue = queue.SimpleQueue()
    with cpu_model.one_process(), torch.no_grad():
        model = cpu_model.make_model(cpu_model.make_bridge(read), read.dtype)
        load(checkpoint.find(imported, "--from"), model)
        filled.mkdir()
        dist_checkpointing.save(checkpoint.state(model), str(filled), content_metadata=checkpoint.CONTENT)
    written = [
        {file.name: file.read_bytes() for file in path.glob("*.distcp")}
        for path in (filled, imported / selection.RELEASE)
    ]
    return bool(written[0]) and written[0] == written[1]
