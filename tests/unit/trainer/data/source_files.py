"""A folder of text files, and options of megatron-prepare that build it into a dataset beside it."""

from pathlib import Path

from megatron_trainer.data.prepare_options import PrepareOptions, parse_options

TEXTS = {
    "a.py": "def add(a, b):\n    return a + b\n" * 20,
    "pkg/b.py": "class Thing:\n    name = 'thing'\n" * 20,
    "notes.txt": "not included",
    "empty.py": "\n",
}


def write_source(folder: Path) -> Path:
    """The folder with the texts, and with a file that is no text."""
    for name, text in TEXTS.items():
        path = folder / "source" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (folder / "source" / "binary.py").write_bytes(b"\xff\xfe\x00\x80")
    return folder / "source"


def options(source: Path, *extra: str) -> PrepareOptions:
    """A byte-level BPE of 300 entries, trained on the folder's `*.py`."""
    out = source.parent / "data"
    return parse_options(
        [
            *("--source", str(source), "--include", "**/*.py"),
            *("--output-prefix", str(out / "code"), "--tokenizer-dir", str(out / "tokenizer")),
            *("--tokenizer-vocab-size", "300", "--append-eod", *extra),
        ]
    )
