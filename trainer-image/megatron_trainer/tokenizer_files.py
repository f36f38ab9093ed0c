"""The files of a tokenizer on which prepared data depend."""

import hashlib
from pathlib import Path


def digest_of_tokenizer(folder: Path, *, with_template: bool) -> str:
    """Return the digest of a tokenizer's files."""
    names = ["tokenizer.json", *(("tokenizer_config.json", "chat_template.jinja") if with_template else ())]
    digest = hashlib.sha256()
    for name in names:
        path = folder / name
        digest.update(path.read_bytes() if path.is_file() else b"none")
    return digest.hexdigest()
