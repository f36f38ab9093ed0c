"""Documents in all formats, and the dataset that megatron-prepare makes of them."""

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from megatron_contract.exit_codes import ExitCode
from megatron_trainer.data import blend, sources, tokenizer
from megatron_trainer.data.blend import Worker
from megatron_trainer.data.preparation_error import PreparationError
from megatron_trainer.data.sources import Source

TEXTS = [f"document {number}: " + "the quick brown fox " * (number % 7 + 1) for number in range(200)]
TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"


def lines(texts: list[str], key: str = "text") -> bytes:
    return b"".join(json.dumps({key: text}).encode() + b"\n" for text in texts)


def write(folder: Path, kind: str) -> dict[str, Any]:
    """The texts in one of the formats; returns the source's settings."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    import zstandard

    folder.mkdir(parents=True, exist_ok=True)
    table = pa.table({"content": TEXTS, "id": list(range(len(TEXTS)))})
    match kind:
        case "jsonl":
            (folder / "a.jsonl").write_bytes(lines(TEXTS[:120]))
            (folder / "b.jsonl").write_bytes(lines(TEXTS[120:]).rstrip(b"\n"))
            return {"path": f"{folder}/*.jsonl", "format": "jsonl"}
        case "gz":
            (folder / "a.jsonl.gz").write_bytes(gzip.compress(lines(TEXTS, "body")))
            return {"path": f"{folder}/**/*.gz", "format": "jsonl", "key": "body"}
        case "zst":
            packed = [zstandard.compress(lines(part)) for part in (TEXTS[:50], TEXTS[50:])]
            (folder / "a.jsonl.zst").write_bytes(b"".join(packed))
            return {"path": f"{folder}/a.jsonl.zst", "format": "jsonl"}
        case "text":
            for number, text in enumerate(TEXTS):
                (folder / f"{number:04d}.txt").write_text(text)
            return {"path": f"{folder}/*.txt", "format": "text"}
        case "parquet":
            pq.write_table(table, folder / "a.parquet", row_group_size=30)
            return {"path": f"{folder}/a.parquet", "format": "parquet", "key": "content"}
        case _:
            for number, part in enumerate((table[:90], table[90:])):
                path = folder / f"data-{number}.arrow"
                with path.open("wb") as file, pa.ipc.new_stream(file, table.schema) as stream:
                    stream.write_table(part, max_chunksize=40)
            state = {"_data_files": [{"filename": f"data-{number}.arrow"} for number in range(2)]}
            (folder / "state.json").write_text(json.dumps(state))
            return {"path": str(folder), "format": "hf", "key": "content"}


def source(folder: Path, settings: dict[str, Any], name: str = "corpus_text_document") -> Source:
    [found] = sources.parse_sources(json.dumps([settings | {"output": str(folder / "out" / name)}]))
    return found


def prepare(
    folder: Path, tokenizer_dir: Path, *found: Source, index: int = 0, count: int = 1
) -> dict[str, bytes]:
    blend.prepare(found, folder / "out", tokenizer_dir, Worker(index, count), append_eod=True)
    return {path.name: path.read_bytes() for path in sorted((folder / "out").glob("*_text_document.*"))}


def refusal(folder: Path, tokenizer_dir: Path, settings: dict[str, Any]) -> str:
    """The error of a source, which must leave nothing that passes for a dataset."""
    found = source(folder, settings)
    with pytest.raises(PreparationError) as refused:
        prepare(folder, tokenizer_dir, found)
    assert refused.value.code == ExitCode.BAD_DATA
    assert not Path(f"{found.output}.bin").exists()
    assert not list((folder / "out").glob("objects/*/done.json"))
    return str(refused.value)


def decoded(prefix: Path, tokenizer_dir: Path) -> list[str]:
    from megatron.core.datasets.indexed_dataset import IndexedDataset

    loaded, eod = tokenizer.load(tokenizer_dir)
    dataset = IndexedDataset(str(prefix))
    found = [dataset[index].tolist() for index in range(len(dataset))]
    assert all(ids[-1] == eod for ids in found)
    return [loaded.decode(ids[:-1]) for ids in found]


def with_template(tokenizer_dir: Path, folder: Path) -> Path:
    folder.mkdir()
    for path in tokenizer_dir.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


def with_own_code(folder: Path, tokenizer_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of a tokenizer whose class is in its own folder, to be loaded in this process."""
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(folder / "modules"))
    monkeypatch.syspath_prepend(folder / "modules")
    made = folder / "custom"
    shutil.copytree(tokenizer_dir, made)
    settings = json.loads((made / "tokenizer_config.json").read_text())
    settings |= {"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": [None, "own_tokenizer.Own"]}}
    (made / "tokenizer_config.json").write_text(json.dumps(settings))
    code = (
        "from transformers import PreTrainedTokenizerFast\n\nclass Own(PreTrainedTokenizerFast):\n    pass\n"
    )
    (made / "own_tokenizer.py").write_text(code)
    return made
