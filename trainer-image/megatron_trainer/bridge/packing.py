"""Samples that share a sequence: Megatron-Bridge packs them at the start of a run, on rank 0."""

import dataclasses
import hashlib
import json
import os
from pathlib import Path
from typing import Any, Final

from megatron_contract.bridge_run import PACKED_FOLDER
from megatron_contract.exit_codes import ExitCode

from megatron_trainer.tokenizer_files import digest_of_tokenizer
from megatron_trainer.worker.failures import RankError

_SAMPLES: Final = ("training.jsonl", "validation.jsonl")


def require_attention(platform: str) -> None:
    """Raise RankError where attention does not keep the samples of a sequence apart."""
    if platform == "cpu":
        raise RankError(
            ExitCode.USAGE,
            f"{PACKED_FOLDER}: Megatron's own attention takes no packed samples, and Transformer Engine's, "
            "which keeps them apart, needs a GPU; leave it out",
        )


def pack(config: Any, folder: Path) -> None:
    """Have samples share sequences of the model's length.

    Bridge takes a file that exists for finished and current. So what the files depend on is in the name of
    their folder, below `folder`, and rank 0 deletes one that it was killed in.
    """
    from megatron.bridge.data.packing import PackedSequenceSpecs

    own = folder / _digest(config)
    training, validation = own / "training.idx.parquet", own / "validation.idx.parquet"
    if int(os.environ.get("RANK", "0")) == 0:
        own.mkdir(parents=True, exist_ok=True)
        for path in (training, validation):
            _delete_partial(path)
    specs = PackedSequenceSpecs(packed_sequence_size=config.model.seq_length)
    # Set afterwards: the constructor requires files that exist.
    specs.packed_train_data_path, specs.packed_val_data_path = str(training), str(validation)
    specs.packed_metadata_path = own / "metadata.json"
    config.dataset.offline_packing_specs = specs
    config.dataset.enable_offline_packing = True


def _digest(config: Any) -> str:
    root = Path(config.dataset.dataset_root)
    found = [(root / name).stat() for name in _SAMPLES if (root / name).is_file()]
    depends = [
        config.model.seq_length,
        dataclasses.asdict(config.dataset.preprocessing),
        [(each.st_size, each.st_mtime_ns) for each in found],
        digest_of_tokenizer(Path(str(config.tokenizer.tokenizer_model)), with_template=True),
    ]
    return hashlib.sha256(json.dumps(depends, default=str).encode()).hexdigest()[:16]


def _delete_partial(path: Path) -> None:
    """Delete a file that lacks Parquet's footer, which is written last."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        if path.exists():
            pq.read_metadata(path)
    except pa.ArrowException:
        path.unlink()
