"""A model is imported by its name on a hub, a stand-in on the loopback device, as from its folder."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from megatron_contract.conversion import ConversionResult
from megatron_contract.environment import ENV_SECRET_VARIABLES, ENV_TERMINATION_LOG
from megatron_trainer.weights.audit import AUDIT_FILE
from megatron_trainer.weights.huggingface_folder import write_weights
from safetensors.torch import load_file

from testkit.hub_stand_in import COMMIT, HostedModel, HubStandIn
from testkit.waiting import wait_until
from testkit.weights.families import by_name, write_model
from testkit.weights.warm import WarmConverter

NAME, TOKEN = "research/tiny-llama", "hf_the_right_token"
FIRST, LAST = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("modelopt") is None,
    reason="what Megatron-Bridge imports is not installed: run make bridge-training",
)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A random Llama whose weights are in two files."""
    folder = tmp_path / "published"
    write_model(by_name("Llama"), folder)
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    half = sum(tensor.nbytes for tensor in weights.values()) * 2 // 3
    write_weights(folder, sorted(weights.items()), shard_bytes=half)
    assert {FIRST, LAST} == {file.name for file in folder.glob("*.safetensors")}
    return folder


@pytest.fixture
def stand_in(source: Path) -> Iterator[HubStandIn]:
    with HubStandIn({NAME: HostedModel(source, token=TOKEN)}).running() as running:
        yield running


class Imports:
    """Runs the command as the container of an import does."""

    def __init__(self, stand_in: HubStandIn, folder: Path) -> None:
        self.folder = folder / "data" / "hub" / NAME / "main"
        self.log = folder / "termination-log"
        self._environment = {
            "HF_ENDPOINT": stand_in.url,
            "HOME": str(folder),
            ENV_SECRET_VARIABLES: "HF_TOKEN",
            ENV_TERMINATION_LOG: str(self.log),
        }

    def start(self, token: str) -> subprocess.Popen[str]:
        words = ["--hub", NAME, "--from", str(self.folder), "--to", f"{self.folder}-megatron", "--reuse"]
        return subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "megatron_trainer.weights.command", "import", *words],
            env=os.environ | self._environment | {"HF_TOKEN": token},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )


def _checkpoint(folder: Path) -> dict[str, Any]:
    """What a checkpoint has: every tensor's checksum, and the files of the model."""
    kept = {file.name: file.read_bytes() for file in (folder / "huggingface").iterdir()}
    return {"audit": json.loads((folder / AUDIT_FILE).read_text()), "kept": kept}


def test_a_download_is_refused_killed_and_resumed_and_its_checkpoint_is_that_of_the_folder(
    converter: WarmConverter, stand_in: HubStandIn, source: Path, tmp_path: Path
) -> None:
    imports = Imports(stand_in, tmp_path)
    refused = imports.start("hf_wrong_token")
    output, _ = refused.communicate()
    assert refused.returncode == 2
    assert "refuses the token (401); correct the Secret of init.from.huggingFace.secretKeyRef" in output

    stand_in.stop_in = LAST
    killed = imports.start(TOKEN)
    part = imports.folder.with_name(".main.partial")
    wait_until("half of the last file", stand_in.stopped.is_set)
    wait_until("the first file", (part / FIRST).exists)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert not imports.folder.exists()

    stand_in.stop_in = None
    resumed = imports.start(TOKEN)
    output, _ = resumed.communicate()
    assert resumed.returncode == 0, output
    assert stand_in.downloads(FIRST) == [0]
    result = json.loads(imports.log.read_text())
    assert ConversionResult.from_json(result).revision == COMMIT
    assert "hf_" not in output + json.dumps(result)

    from_folder = tmp_path / "from-folder"
    ended = converter.convert("import", "--from", source, "--to", from_folder, log=tmp_path / "log")
    assert ended.code == 0, ended.output
    assert _checkpoint(imports.folder.with_name("main-megatron")) == _checkpoint(from_folder)
