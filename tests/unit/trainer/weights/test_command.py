"""`megatron-convert` refuses what it cannot convert before it imports Megatron."""

import errno
import json
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from megatron_contract.conversion import ConversionResult
from megatron_contract.environment import ENV_PROGRESS_PORT, ENV_TERMINATION_LOG, VALIDATION_FILE
from megatron_contract.exit_codes import ExitCode
from megatron_contract.termination import TerminationMessage
from megatron_contract.wire import load_json
from megatron_trainer.checkpoints import selection
from megatron_trainer.checkpoints.selection import TRACKER
from megatron_trainer.weights import command, destination
from megatron_trainer.weights.audit import Audit
from megatron_trainer.weights.huggingface_folder import write_weights

from tests.unit.trainer.checkpoints.test_selection import fail_reads, write_checkpoint


@pytest.fixture(autouse=True)
def restored_handler() -> Iterator[None]:
    """Restore the handler that the command replaces."""
    handler = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, handler)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    write_weights(folder, {"a": torch.ones(4)}.items())
    return folder


def _refuse(capsys: pytest.CaptureFixture[str], *words: str | Path) -> str:
    with pytest.raises(SystemExit) as ended:
        command.main([str(word) for word in words])
    assert ended.value.code == command.REFUSED
    assert "megatron.bridge" not in sys.modules
    return capsys.readouterr().err


def test_an_unknown_architecture_is_refused_with_those_that_convert(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (model / "config.json").write_text(json.dumps({"architectures": ["Qwen4ForCausalLM"]}))
    error = _refuse(capsys, "import", "--from", model, "--to", tmp_path / "out")
    assert "architecture Qwen4ForCausalLM of config.json is not among" in error
    assert "did you mean Qwen3ForCausalLM?" in error
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model"]


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_volume_that_does_not_respond_is_no_damaged_model(
    name: str, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A Job tries again; it would take a refusal as final."""
    [weights] = model.glob("*.safetensors")
    fail_reads(model / name if name == "config.json" else weights)
    with pytest.raises(SystemExit) as ended:
        command.main(["import", "--from", str(model), "--to", str(tmp_path / "out")])
    error = capsys.readouterr().err
    assert ended.value.code == command.FAILED, error
    assert f"{model}: " in error
    assert "the volume did not respond" in error
    assert "download it again" not in error


def test_an_existing_destination_is_refused(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"--to {model} exists" in _refuse(capsys, "import", "--from", model, "--to", model)


@pytest.mark.parametrize("name", ["export", "audit"])
def test_a_missing_checkpoint_is_refused(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    error = _refuse(capsys, name, "--from", tmp_path / "absent", "--to", tmp_path / "out")
    assert "is not a folder" in error
    assert list(tmp_path.iterdir()) == []


def test_a_base_without_configuration_is_refused(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    error = _refuse(capsys, "export", "--from", model, "--to", tmp_path / "out", "--base", tmp_path)
    assert "--base" in error
    assert "has no config.json" in error


def test_a_missing_argument_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--to" in _refuse(capsys, "import", "--from", "x")


@pytest.mark.parametrize("name", ["import", "export", "audit"])
@pytest.mark.parametrize(
    ("variable", "words", "port"),
    [("8432", [], 8432), ("8432", ["--progress-port", "9000"], 9000), ("", [], None)],
)
def test_a_job_names_the_port_of_its_progress_by_a_variable(
    name: str, variable: str, words: list[str], port: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENV_PROGRESS_PORT, variable)
    arguments = command.make_parser().parse_args([name, "--from", "a", "--to", "b", *words])
    assert arguments.progress_port == port


def test_sigterm_leaves_nothing(tmp_path: Path) -> None:
    def build() -> None:
        with destination.building(tmp_path / "out") as part:
            (part / "file").touch()
            signal.raise_signal(signal.SIGTERM)

    signal.signal(signal.SIGTERM, command.terminate)
    with pytest.raises(SystemExit) as ended:
        build()
    assert ended.value.code == ExitCode.TERMINATED
    assert list(tmp_path.iterdir()) == []


def test_the_command_ends_by_sigterm_as_the_contract_has_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _refuse(capsys, "import", "--from", tmp_path / "absent", "--to", tmp_path / "out")
    assert signal.getsignal(signal.SIGTERM) is command.terminate


def test_a_pod_finds_why_the_conversion_was_refused_in_its_termination_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "termination-log"
    monkeypatch.setenv(ENV_TERMINATION_LOG, str(log))
    error = _refuse(capsys, "import", "--from", tmp_path / "absent", "--to", tmp_path / "out")
    message = TerminationMessage.parse(log.read_text())
    assert message is not None
    assert message.exit_code == command.REFUSED
    assert not message.completed
    assert error == f"megatron-convert: {message.message}\n"


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "No space left on device: {to}"),
        (OSError("a.safetensors ends 8 bytes early"), "a.safetensors ends 8 bytes early: {to}"),
        (OSError(errno.EIO, "Input/output error", "/in/a"), "Input/output error: /in/a"),
    ],
    ids=["without a file", "its own", "of a file"],
)
def test_an_error_of_a_volume_has_its_cause_and_a_path(
    error: OSError,
    text: str,
    model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(_arguments: object) -> None:
        raise error

    monkeypatch.setattr(command, "_run", fail)
    target = tmp_path / "out"
    with pytest.raises(SystemExit) as ended:
        command.main(["import", "--from", str(model), "--to", str(target)])
    assert ended.value.code == command.FAILED
    assert capsys.readouterr().err == f"megatron-convert: error: {text.format(to=target)}\n"


def test_parents_of_an_export_are_created_only_if_asked_for(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["export", "--from", tmp_path / "absent", "--to", tmp_path / "a" / "b" / "out", "--base", model]
    assert "its parent" in _refuse(capsys, *words)
    assert not (tmp_path / "a").exists()
    assert "is not a folder" in _refuse(capsys, *words, "--parents")
    assert (tmp_path / "a" / "b").is_dir()


def _convert(monkeypatch: pytest.MonkeyPatch, *words: str | Path, equal: bool) -> list[str]:
    """Run the command where everything that needs Megatron-Bridge is replaced; what it did."""
    done: list[str] = []

    def convert(source: Path, target: Path, *_: Path | None) -> Audit:
        destination.check(target)
        # As the trainer of a run that goes on.
        selection.prune(source if (source / TRACKER).exists() else source.parent, 1)
        done.append("convert")
        return Audit("import", "huggingFace", {})

    def audit(*_: Path | None) -> Audit:
        done.append("audit")
        return Audit("import", "huggingFace", {}, [] if equal else ["a has other values"])

    conversion = SimpleNamespace(import_weights=convert, export_weights=convert, audit=audit)
    monkeypatch.setitem(sys.modules, "megatron_trainer.weights.conversion", conversion)
    monkeypatch.setattr("megatron_trainer.weights.conversion", conversion, raising=False)
    monkeypatch.setattr("megatron_trainer.weights.cpu_model.import_bridge", lambda: None)
    monkeypatch.setattr(command, "find_spec", lambda _name: object())
    with pytest.raises(SystemExit) as ended:
        command.main([str(word) for word in words])
    return [*done, str(ended.value.code)]


@pytest.mark.parametrize(("equal", "expected"), [(True, ["audit", "0"]), (False, ["audit", "2"])])
def test_an_existing_destination_is_kept_only_if_it_is_the_same_model(
    model: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    equal: bool,
    expected: list[str],
) -> None:
    target = model.parent / "out"
    target.mkdir()
    words = ("import", "--from", model, "--to", target, "--reuse")
    assert _convert(monkeypatch, *words, equal=equal) == expected
    if not equal:
        text = f"--to {target} exists and holds other weights than {model}: audit failed"
        assert text in capsys.readouterr().err


def test_an_existing_export_with_the_tokenizer_of_another_base_is_refused(
    model: Path,
    trained: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target = tmp_path / "out"
    shutil.copytree(model, target)
    words = ("export", "--from", trained, "--to", target, "--base", model, "--reuse")
    assert _convert(monkeypatch, *words, equal=True) == ["audit", "0"]
    (model / "tokenizer.json").write_text("{}")
    assert _convert(monkeypatch, *words, equal=True) == ["audit", "2"]
    text = f"--to {target} exists with the same weights, and not with tokenizer.json of {model}; name"
    assert text in capsys.readouterr().err


def test_an_existing_import_is_kept_where_the_model_has_another_tokenizer_or_a_template_since(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = model.parent / "out"
    shutil.copytree(model, target / "huggingface")
    (model / "tokenizer.json").write_text("{}")
    (model / "chat_template.jinja").write_text("{{ messages }}")
    words = ("import", "--from", model, "--to", target, "--reuse")
    assert _convert(monkeypatch, *words, equal=True) == ["audit", "0"]


def test_an_existing_import_of_another_configuration_is_refused(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    target = model.parent / "out"
    shutil.copytree(model, target / "huggingface")
    described = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(described | {"rope_theta": 1e6}))
    words = ("import", "--from", model, "--to", target, "--reuse")
    assert _convert(monkeypatch, *words, equal=True) == ["audit", "2"]
    text = f"--to {target} exists with the same weights, and not with config.json of {model}; name"
    assert text in capsys.readouterr().err


def test_a_destination_that_is_not_there_is_converted(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("import", "--from", model, "--to", model.parent / "out", "--reuse")
    assert _convert(monkeypatch, *words, equal=True) == ["convert", "0"]


def test_a_pod_finds_the_tensors_that_were_audited_in_its_termination_message(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "termination-log"
    monkeypatch.setenv(ENV_TERMINATION_LOG, str(log))
    _convert(monkeypatch, "import", "--from", model, "--to", tmp_path / "out", equal=True)
    assert ConversionResult.from_json(load_json(log.read_text())) == ConversionResult(0, 0)


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    """A run with the checkpoints 10, 20 and 30, of which 20 has the lowest validation loss."""
    run = tmp_path / "run"
    for iteration in (10, 20, 30):
        write_checkpoint(run, iteration)
        with (run / VALIDATION_FILE).open("a") as file:
            file.write(json.dumps({"iteration": iteration, "lmLoss": abs(iteration - 20) + 1.5}) + "\n")
    (run / TRACKER).write_text("30")
    return run


@pytest.mark.parametrize(
    ("words", "iteration", "loss"),
    [((), 30, 11.5), (("--iteration", "best"), 20, 1.5), (("--iteration", "10"), 10, 11.5)],
)
def test_the_pod_of_an_export_reports_which_checkpoint_it_has_exported(
    words: tuple[str, ...],
    iteration: int,
    loss: float,
    model: Path,
    trained: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = tmp_path / "termination-log"
    monkeypatch.setenv(ENV_TERMINATION_LOG, str(log))
    target = tmp_path / "out"
    _convert(monkeypatch, "export", "--from", trained, "--to", target, "--base", model, *words, equal=True)
    result = ConversionResult.from_json(load_json(log.read_text()))
    assert (result.iteration, result.validation_loss) == (iteration, loss)
    assert iteration in selection.iterations(trained), "it was deleted while it was exported"


@pytest.mark.parametrize("iteration", ["15", "best", "-1", "last"])
def test_a_checkpoint_that_is_not_there_is_refused_with_those_that_are(
    iteration: str, model: Path, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (trained / VALIDATION_FILE).unlink()
    words = ("export", "--from", trained, "--to", tmp_path / "out", "--base", model)
    error = _refuse(capsys, *words, f"--iteration={iteration}")
    assert f"--iteration {iteration}: " in error
    assert f"checkpoints in {trained}: 30, 20, 10; name one" in error


@pytest.mark.parametrize(("best", "done"), [(30, ["audit", "0"]), (20, ["convert", "0"])])
def test_the_best_checkpoint_becomes_a_link_only_where_the_newest_has_been_exported(
    best: int, done: list[str], model: Path, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (trained / VALIDATION_FILE).open("a") as file:
        file.write(json.dumps({"iteration": best, "lmLoss": 0.5}) + "\n")
    end, target = tmp_path / "out" / "end", tmp_path / "out" / "best"
    shutil.copytree(model, end)
    words = ("export", "--from", trained, "--to", target, "--base", model, "--iteration", "best")
    assert _convert(monkeypatch, *words, "--link", end, "--reuse", equal=True) == done
    assert target.is_symlink() == (best == 30)
    if best == 30:
        assert target.readlink() == Path("end"), "the folders may be moved together"


def test_an_export_into_the_folder_of_two_others_names_them(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    target = model.parent / "out"
    for name in ("best", "end"):
        (target / name).mkdir(parents=True)
    words = ("export", "--from", model, "--to", target, "--base", model, "--reuse")
    assert _convert(monkeypatch, *words, equal=True) == ["2"]
    error = capsys.readouterr().err
    assert f"--to {target} exists and is no Hugging Face model: it has best, end and no config.json" in error
    assert "name a folder that does not exist" in error
