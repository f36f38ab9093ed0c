"""What Megatron-Bridge's datasets raise while their volume cannot be read: no error of a sample."""

import errno
import importlib.util
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from megatron_trainer.bridge import sample_files
from megatron_trainer.weights import cpu_model

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("modelopt") is None,
    reason="what Megatron-Bridge imports is not installed: run make bridge-training",
)
# Reads of address 0 of a process's memory fail with EIO.
FAILING = Path("/proc/self/mem")


def test_a_picture_that_the_volume_does_not_return_is_no_wrong_sample(tmp_path: Path) -> None:
    cpu_model.import_bridge()
    from megatron_trainer.bridge import image_text

    part = {"type": "image", "tar": str(FAILING), "offset": 0, "size": 8, "crc32": 0}
    path = tmp_path / "training.jsonl"
    path.write_text(json.dumps({"messages": [{"role": "user", "content": [part]}]}) + "\n")
    with pytest.raises(OSError, match="Input/output error") as raised:
        image_text.sample(path, 0)
    assert raised.value.errno == errno.EIO

    part["tar"] = str(tmp_path / "gone.tar")
    path.write_text(json.dumps({"messages": [{"role": "user", "content": [part]}]}) + "\n")
    with pytest.raises(sample_files.SampleLineError, match=r"training\.jsonl:1: .*gone\.tar"):
        image_text.sample(path, 0)


def test_a_line_that_the_volume_does_not_return_is_no_wrong_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu_model.import_bridge()
    from megatron.bridge.data.datasets.gpt_sft import GPTSFTDataset

    def read(dataset: Any, _index: int) -> bytes:
        return Path(dataset.file_path).read_bytes()

    monkeypatch.setattr(GPTSFTDataset, "__getitem__", read)
    sample_files.name_lines()
    dataset: Any = SimpleNamespace(file_path=str(FAILING), samples_mapping=None, indexed_dataset=["{}"])
    with pytest.raises(OSError, match="Input/output error"):
        GPTSFTDataset.__getitem__(dataset, 0)
    dataset.file_path = "/gone.jsonl"
    with pytest.raises(sample_files.SampleLineError, match=r"/gone\.jsonl:1: "):
        GPTSFTDataset.__getitem__(dataset, 0)
