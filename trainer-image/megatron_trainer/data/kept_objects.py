"""Datasets whose files were removed after they were prepared: a run goes on with what is made of them.

What a name links to has a file for the settings of each source, with the name of its dataset: without the
source's files its digest cannot be computed.
"""

import contextlib
import hashlib
import json
from pathlib import Path

from megatron_trainer.data import shards
from megatron_trainer.data.dataset import Dataset
from megatron_trainer.data.log import log
from megatron_trainer.data.sources import Source, content_digest


def keep_settings(linked: Path, dataset: Dataset, eod: int | None) -> None:
    """Write in the folder that a name links to which dataset the source's settings mean."""
    file = _file(linked, dataset.source, dataset.tokenizer, eod)
    if file.is_file():
        return
    # Another user's recipe may have made the folder.
    with contextlib.suppress(PermissionError):
        part = shards.temporary(file)
        part.write_text(json.dumps(dataset.folder.name), encoding="utf-8")
        part.replace(file)


def find_kept(linked: Path, objects: Path, source: Source, tokenizer: str, eod: int | None) -> Path | None:
    """Return the folder of the dataset that was made with these settings; None if there is none."""
    try:
        name = json.loads(_file(linked, source, tokenizer, eod).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return objects / str(name)


def log_kept(dataset: Dataset) -> None:
    """Log that no file of the source is there any more."""
    source = dataset.source
    log(f"{source.name}.path: nothing matches {source.path} any more; {dataset.folder} is used, made of it")


def _file(linked: Path, source: Source, tokenizer: str, eod: int | None) -> Path:
    depends = [source.path, source.store.endpoint, content_digest(source, (), tokenizer, eod)]
    return linked / f"source-{hashlib.sha256(json.dumps(depends).encode()).hexdigest()[:16]}.json"
