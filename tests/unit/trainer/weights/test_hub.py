"""A model is downloaded from a hub: by the library of the image, from a stand-in on the loopback device."""

import errno
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import huggingface_hub.constants
import pytest
import torch
from megatron_contract.environment import ENV_SECRET_VARIABLES, ENV_TERMINATION_LOG
from megatron_contract.progress import ConversionProgress
from megatron_contract.termination import TerminationMessage
from megatron_trainer.weights import hub
from megatron_trainer.weights.conversion_error import ConversionError, DownloadError
from megatron_trainer.weights.hub import HubModel
from megatron_trainer.weights.huggingface_folder import DOWNLOAD_FILE, INDEX, copy_small_files, write_weights

from testkit.hub_stand_in import COMMIT, HostedModel, HubStandIn
from testkit.waiting import wait_until

NAME = "research/tiny-llama"
TOKEN = "hf_the_right_token"
TAKEN = {
    "config.json",
    "tokenizer.json",
    "chat_template.jinja",
    "LICENSE",
    INDEX,
    "model-00001-of-00002.safetensors",
    "model-00002-of-00002.safetensors",
}


@pytest.fixture(autouse=True)
def online(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in the import's pod, whatever other tests set."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    for name in ("HF_HUB_OFFLINE", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A model with everything that a folder of a hub may have."""
    folder = tmp_path / "published"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"architectures": ["TinyForCausalLM"]}))
    write_weights(folder, {"a": torch.ones(40_000), "b": torch.zeros(40_000)}.items(), shard_bytes=200_000)
    for name in ("tokenizer.json", "chat_template.jinja", "LICENSE", "modeling_tiny.py", "README.md"):
        (folder / name).write_text(f"{name} of the model")
    (folder / "consolidated.safetensors").write_bytes(b"the same weights in another layout")
    (folder / "onnx").mkdir()
    (folder / "onnx" / "model.safetensors").write_bytes(b"and once more")
    return folder


@pytest.fixture
def stand_in(source: Path) -> Iterator[HubStandIn]:
    with HubStandIn({NAME: HostedModel(source)}).running() as running:
        yield running


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "data" / "hub" / NAME / "main"


def _model(stand_in: HubStandIn, token: str | None = None, revision: str = "main") -> HubModel:
    return HubModel(NAME, revision, stand_in.url, token)


def _ignore(_: Callable[[], ConversionProgress]) -> None:
    """Measure nothing."""


def test_weights_and_small_files_are_downloaded_and_no_code(
    stand_in: HubStandIn, source: Path, target: Path
) -> None:
    hub.download(_model(stand_in), target, _ignore)
    assert {file.name for file in target.iterdir()} == TAKEN | {DOWNLOAD_FILE}
    assert all((target / name).read_bytes() == (source / name).read_bytes() for name in TAKEN)
    assert hub.commit(target) == COMMIT


def test_a_model_that_is_there_is_taken_without_a_question_to_the_hub(
    stand_in: HubStandIn, target: Path
) -> None:
    hub.download(_model(stand_in), target, _ignore)
    stand_in.requests.clear()
    hub.download(_model(stand_in), target, _ignore)
    assert stand_in.requests == []


def test_two_recipes_at_once_share_one_download(stand_in: HubStandIn, target: Path) -> None:
    threads = [
        threading.Thread(target=hub.download, args=(_model(stand_in), target, _ignore)) for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert stand_in.downloads("model-00001-of-00002.safetensors") == [0]
    assert hub.commit(target) == COMMIT


def test_the_progress_ends_at_the_bytes_of_the_files_that_are_taken(
    stand_in: HubStandIn, source: Path, target: Path
) -> None:
    measures: list[Callable[[], ConversionProgress]] = []
    hub.download(_model(stand_in), target, measures.append)
    (measure,) = measures
    total = sum((source / name).stat().st_size for name in TAKEN)
    assert measure().bytes_total == total
    assert measure().step == "download"


def test_an_exported_model_has_not_the_file_of_its_download(
    stand_in: HubStandIn, target: Path, tmp_path: Path
) -> None:
    hub.download(_model(stand_in), target, _ignore)
    copy_small_files(target, tmp_path / "exported")
    assert not (tmp_path / "exported" / DOWNLOAD_FILE).exists()
    assert (tmp_path / "exported" / "tokenizer.json").exists()


def test_files_of_an_earlier_commit_of_a_branch_are_not_kept(
    stand_in: HubStandIn, source: Path, target: Path
) -> None:
    part = target.with_name(f".{target.name}.partial")
    part.mkdir(parents=True)
    (part / "added_tokens.json").write_text("{}")
    (part / "tokenizer.json").write_text("a tokenizer of the same branch before")
    hub.download(_model(stand_in), target, _ignore)
    assert not (target / "added_tokens.json").exists()
    assert (target / "tokenizer.json").read_bytes() == (source / "tokenizer.json").read_bytes()


@pytest.mark.parametrize(("later", "kept"), [(COMMIT, True), ("f" * 40, False)])
def test_a_download_that_goes_on_keeps_files_of_the_same_commit_alone(
    stand_in: HubStandIn, target: Path, later: str, kept: bool
) -> None:
    part = target.with_name(f".{target.name}.partial")
    with pytest.raises(KeyboardInterrupt):
        hub.download(_model(stand_in), target, mock.Mock(side_effect=KeyboardInterrupt))
    (part / "tokenizer.json").write_text("a tokenizer of this commit")
    stand_in.models[NAME].commit = later
    found: list[str] = []
    hub.download(_model(stand_in), target, lambda _: found.extend(file.name for file in part.iterdir()))
    assert ("tokenizer.json" in found) is kept
    assert {file.name for file in target.iterdir()} == TAKEN | {DOWNLOAD_FILE}
    assert hub.commit(target) == later


def test_a_folder_of_somebody_else_is_never_taken_for_the_model(stand_in: HubStandIn, target: Path) -> None:
    target.mkdir(parents=True)
    with pytest.raises(ConversionError, match=r"was not downloaded from a hub; remove it, or set init.from"):
        hub.download(_model(stand_in), target, _ignore)
    assert list(target.iterdir()) == []


def test_the_token_opens_a_gated_model_and_is_not_sent_to_another_host(
    stand_in: HubStandIn, target: Path
) -> None:
    stand_in.models[NAME].token = TOKEN
    hub.download(_model(stand_in, TOKEN), target, _ignore)
    assert hub.commit(target) == COMMIT
    elsewhere = [request.token for request in stand_in.requests if request.path.startswith("/cdn/")]
    assert elsewhere == [None, None]
    own = {request.token for request in stand_in.requests if not request.path.startswith("/cdn/")}
    assert own == {TOKEN}


def test_without_a_token_none_is_sent(stand_in: HubStandIn, target: Path) -> None:
    hub.download(_model(stand_in), target, _ignore)
    assert {request.token for request in stand_in.requests} == {None}


@pytest.mark.parametrize(
    ("token", "what"),
    [
        (None, r"gives this model only to accounts .* set init.from.huggingFace.secretKeyRef to a token"),
        ("hf_wrong_token", r"refuses the token \(401\); correct the Secret of init.from.huggingFace.secretK"),
    ],
)
def test_a_gated_model_is_refused_with_what_to_do(
    stand_in: HubStandIn, target: Path, token: str | None, what: str
) -> None:
    stand_in.models[NAME].token = TOKEN
    with pytest.raises(ConversionError, match=what) as refused:
        hub.download(_model(stand_in, token), target, _ignore)
    assert "hf_" not in str(refused.value)
    assert not target.exists()


@pytest.mark.parametrize("token", [None, TOKEN])
def test_a_name_that_the_hub_lacks_is_refused(stand_in: HubStandIn, target: Path, token: str | None) -> None:
    with pytest.raises(ConversionError, match=r"has no such model, or .*correct init.from.huggingFace.name"):
        hub.download(HubModel("research/absent", "main", stand_in.url, token), target, _ignore)


def test_a_revision_that_the_model_lacks_is_refused(stand_in: HubStandIn, target: Path) -> None:
    with pytest.raises(ConversionError, match=r"has no revision v2 of it; correct init.from.huggingFace.rev"):
        hub.download(_model(stand_in, revision="v2"), target, _ignore)


def test_a_model_without_safetensors_is_refused_before_a_download(
    stand_in: HubStandIn, source: Path, target: Path
) -> None:
    for file in (*source.glob("*.safetensors"), source / INDEX):
        file.unlink()
    (source / "pytorch_model.bin").write_bytes(b"pickled")
    with pytest.raises(ConversionError, match=r"no \*.safetensors file on the hub; it has pytorch_model.bin"):
        hub.download(_model(stand_in), target, _ignore)


def test_a_model_above_the_room_of_the_volume_is_refused(
    stand_in: HubStandIn, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = hub.shutil.disk_usage("/")
    monkeypatch.setattr(hub.shutil, "disk_usage", lambda _: usage._replace(free=1000))
    with pytest.raises(ConversionError, match=r"0 MiB are to be downloaded and 0 MiB are free; enlarge the"):
        hub.download(_model(stand_in), target, _ignore)


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_hub_that_fails_may_be_asked_again(stand_in: HubStandIn, target: Path, status: int) -> None:
    stand_in.status = status
    with pytest.raises(DownloadError, match=f"answers {status}"):
        hub.download(_model(stand_in), target, _ignore)


def test_a_hub_that_cannot_be_reached_may_be_asked_again(target: Path) -> None:
    closed = HubModel(NAME, "main", "http://127.0.0.1:9", None)
    with pytest.raises(DownloadError, match=r"127.0.0.1:9 cannot be read: .*check platform.hub.endpoint"):
        hub.download(closed, target, _ignore)


def test_an_endpoint_that_is_no_hub_is_refused(stand_in: HubStandIn, target: Path) -> None:
    stand_in.status = 200
    with pytest.raises(ConversionError, match=r"otherwise than a hub: .*, or platform.hub.endpoint"):
        hub.download(_model(stand_in), target, _ignore)


def test_a_volume_that_is_full_is_not_taken_for_a_hub_that_fails(
    stand_in: HubStandIn, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = OSError(errno.ENOSPC, "No space left on device", str(target))
    monkeypatch.setattr("huggingface_hub.snapshot_download", mock.Mock(side_effect=full))
    with pytest.raises(OSError, match="No space left on device"):
        hub.download(_model(stand_in), target, _ignore)


def _import(stand_in: HubStandIn, target: Path, log: Path, token: str) -> subprocess.Popen[str]:
    """The command as an import's pod has it."""
    words = ["--hub", NAME, "--from", str(target), "--to", f"{target}-megatron", "--reuse"]
    environment = os.environ | {
        "HF_ENDPOINT": stand_in.url,
        "HF_TOKEN": token,
        "HOME": str(log.parent),
        ENV_SECRET_VARIABLES: "HF_TOKEN",
        ENV_TERMINATION_LOG: str(log),
    }
    command = [sys.executable, "-m", "megatron_trainer.weights.command", "import", *words]
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def _await_half_of_a_file(stand_in: HubStandIn, process: subprocess.Popen[str]) -> None:
    wait_until("half of the file", lambda: stand_in.stopped.is_set() or process.poll() is not None)
    assert process.poll() is None, process.communicate()[0]


def test_a_download_that_was_killed_half_way_keeps_the_files_that_were_complete(
    stand_in: HubStandIn, source: Path, target: Path, tmp_path: Path
) -> None:
    first, second = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    stand_in.models[NAME].token = TOKEN
    part = target.with_name(f".{target.name}.partial")
    stand_in.stop_in = second
    killed = _import(stand_in, target, tmp_path / "log", TOKEN)
    _await_half_of_a_file(stand_in, killed)
    wait_until("the first file", (part / first).exists)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert not target.exists()

    stand_in.stop_in = None
    again = _import(stand_in, target, tmp_path / "log", TOKEN)
    output, _ = again.communicate()
    assert "architecture TinyForCausalLM of config.json is not among" in output
    assert all((target / name).read_bytes() == (source / name).read_bytes() for name in TAKEN)
    assert stand_in.downloads(first) == [0]
    assert stand_in.downloads(second) == [0, 0]
    assert not part.exists()


def test_sigterm_ends_a_download_at_once(stand_in: HubStandIn, target: Path, tmp_path: Path) -> None:
    stand_in.stop_in = "model-00001-of-00002.safetensors"
    process = _import(stand_in, target, tmp_path / "log", TOKEN)
    _await_half_of_a_file(stand_in, process)
    process.terminate()
    process.communicate()
    assert process.returncode == 143


def test_a_wrong_token_ends_the_command_with_2_and_is_in_no_message(
    stand_in: HubStandIn, target: Path, tmp_path: Path
) -> None:
    stand_in.models[NAME].token = TOKEN
    process = _import(stand_in, target, tmp_path / "log", "hf_wrong_token")
    output, _ = process.communicate()
    message = TerminationMessage.parse((tmp_path / "log").read_text())
    assert process.returncode == 2
    assert message is not None
    assert "refuses the token (401)" in message.message
    assert "hf_wrong_token" not in output + (tmp_path / "log").read_text()


def test_the_process_that_converts_has_neither_the_token_nor_a_hub(
    stand_in: HubStandIn, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from megatron_trainer.weights import command

    started: list[tuple[list[str], dict[str, str]]] = []

    def replace(_: str, words: list[str], environment: dict[str, str]) -> None:
        started.append((words, environment))
        raise SystemExit(0)

    monkeypatch.setattr(command.os, "execve", replace)
    monkeypatch.setenv("HF_ENDPOINT", stand_in.url)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setenv(ENV_SECRET_VARIABLES, "HF_TOKEN")
    handler = signal.getsignal(signal.SIGTERM)
    words = ["import", "--hub", NAME, "--from", str(target), "--to", str(tmp_path / "out"), "--reuse"]
    with pytest.raises(SystemExit):
        command.main([*words, "--", "--num-layers", "2"])
    signal.signal(signal.SIGTERM, handler)
    ((argv, environment),) = started
    assert argv[4:] == [
        *("import", "--from", str(target), "--to", str(tmp_path / "out"), "--reuse"),
        *("--", "--num-layers", "2"),
    ]
    assert environment["HF_HUB_OFFLINE"] == "1"
    assert not {"HF_TOKEN", ENV_SECRET_VARIABLES} & environment.keys()
    assert TOKEN not in " ".join(argv)
