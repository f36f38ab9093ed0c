"""What documents are read from: a file of a volume, or an object of a store."""

from pathlib import Path

from megatron_trainer.data.objects import StoredObject

SourceFile = Path | StoredObject


def size_of(file: SourceFile) -> int:
    """Return the bytes of a file. Raises OSError."""
    return file.size if isinstance(file, StoredObject) else file.stat().st_size


def version_of(file: SourceFile) -> int | str:
    """Return what differs after a change: the time of change, or an object's ETag. Raises OSError."""
    return file.version if isinstance(file, StoredObject) else file.stat().st_mtime_ns


def path_of(file: SourceFile) -> Path:
    """Return the path of a file of a volume, the only ones of format hf."""
    assert isinstance(file, Path), "folders of Hugging Face datasets are on volumes"
    return file
