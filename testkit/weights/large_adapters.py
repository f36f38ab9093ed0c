"""Random adapters beside a large import: `python -m testkit.weights.large_adapters IMPORT RUN RANK`."""

import sys
from pathlib import Path
from typing import Any


def write(imported: Path, run: Path, rank: int) -> int:
    """Write what a run of LoRA on an import saves: adapters in bfloat16, their configuration, its record.

    Returns the bytes of the adapters.
    """
    import torch
    import yaml
    from megatron_trainer.bridge.weights_record import WeightsRecord, digest
    from megatron_trainer.checkpoints.selection import TRACKER
    from megatron_trainer.weights import adapters, checkpoint, cpu_model, huggingface_folder

    cpu_model.import_bridge()
    from megatron.core import dist_checkpointing
    from megatron_trainer.weights.checkpoint_writer import StreamedSave

    directory = run / "iter_0000001"
    directory.mkdir(parents=True)
    peft = {"_target_": "megatron.bridge.peft.lora.LoRA", "dim": rank, "alpha": rank}
    described = {"peft": peft, "checkpoint": {"pretrained_checkpoint": str(imported)}}
    (directory / "run_config.yaml").write_text(yaml.safe_dump(described))
    folder = huggingface_folder.read(imported / checkpoint.SOURCE_FOLDER, "--base", weights=False)
    generator = torch.Generator().manual_seed(1)
    with cpu_model.one_process():
        model = cpu_model.make_model(cpu_model.make_bridge(folder), "bfloat16")
        adapters.place(model, directory)
        parts = {name: part for name, part in checkpoint.tensors(model) if checkpoint.ADAPTER in name}

        def random(name: str) -> Any:
            return torch.empty_like(parts[name]).normal_(std=0.02, generator=generator)

        state = checkpoint.state(model)
        state["model"] = {name: entry for name, entry in state["model"].items() if checkpoint.ADAPTER in name}
        strategy = StreamedSave(parts.items(), random)
        dist_checkpointing.save(state, str(directory), strategy, content_metadata=checkpoint.CONTENT)
    WeightsRecord(imported, imported, digest(imported), None, "start").write(run)
    (run / TRACKER).write_text("1\n")
    return sum(part.nbytes for part in parts.values())


if __name__ == "__main__":
    write(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
