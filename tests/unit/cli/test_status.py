"""`megatron status`: statuses as the operator writes them, rendered; the command against a fake kubectl."""

import json
import signal
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from megatron_operator.api.times import seconds
from megatron_operator.cli.main import cli
from megatron_operator.cli.run_status import status_lines

NOW = seconds("2026-01-01T12:00:00Z") or 0.0
METADATA = {"name": "run", "namespace": "research", "generation": 2}
TRAINING: dict[str, Any] = {
    "phase": "Training",
    "observedGeneration": 2,
    "plan": {"worldSize": 64},
    "progress": {
        "iteration": 25000, "trainIters": 100000, "lmLoss": 2.31874, "learningRate": 2.9e-4,
        "stepSeconds": 3.7, "tokensPerSecond": 283398.0, "tflopsPerGpu": 431.2, "eta": "2026-01-04T17:05:00Z",
    },
    "checkpoint": {"iteration": 24900, "time": "2026-01-01T11:54:00Z"},
    "conditions": [
        {"type": "Planned", "status": "True", "reason": "Planned", "message": "TP 1"},
        {"type": "Prepared", "status": "True", "reason": "NothingToPrepare", "message": ""},
        {"type": "Running", "status": "True", "reason": "Running", "message": ""},
        {"type": "Ready", "status": "True", "reason": "Running", "message": ""},
    ],
}  # fmt: skip
RECOVERY: dict[str, Any] = {
    "restarts": 2,
    "goodput": 0.9712,
    "lastIncident": {
        "number": 2, "time": "2026-01-01T11:58:30Z", "kind": "rank", "pod": "worker-2", "node": "gpu-7",
        "cause": "rank 25 was killed by SIGKILL", "rank": 25, "resumedFrom": 24900, "lostIterations": 12,
        "seconds": {"detect": 1.0, "load": 9.0},
    },
}  # fmt: skip
FULL = "█" * 24


def lines(status: dict[str, Any] | None, width: int | None = None) -> list[str]:
    return status_lines({"metadata": METADATA, "status": status}, NOW, width)


def plain(found: list[str]) -> list[str]:
    return [line.replace("\x1b[0m", "").split("m", 1)[-1] if "\x1b" in line else line for line in found]


def test_a_run_that_trains() -> None:
    run, phase, *rest = lines(TRAINING)
    assert run == "run         research/run"
    assert "Training" in phase
    assert rest == [
        f"progress    {'█' * 6}{'░' * 18} 25.0%, 25,000 of 100,000 iterations",
        "loss        2.319, learning rate 0.00029",
        "speed       3.7 s per iteration, 283,398 tokens/s (4,428 per accelerator), "
        "431 TFLOP/s per accelerator",
        "end         2026-01-04 17:05:00 UTC, in 3d05h",
        "checkpoint  iteration 24,900, 6m00s ago",
    ]


def test_the_last_evaluation_is_shown_and_the_best_where_it_is_another() -> None:
    last = {"iteration": 25000, "loss": 2.4, "bestIteration": 25000, "bestLoss": 2.4}
    assert "validation  loss 2.4 at iteration 25,000" in lines(TRAINING | {"validation": last})
    earlier = last | {"bestIteration": 24000, "bestLoss": 2.39}
    shown = lines(TRAINING | {"validation": earlier})
    assert "validation  loss 2.4 at iteration 25,000, lowest 2.39 at 24,000" in shown


def test_a_run_that_recovers_shows_incident_and_condition_and_no_end() -> None:
    condition = {
        "type": "Recovering",
        "status": "True",
        "reason": "RankRestarted",
        "message": "rank 25 restarts",
    }
    found = lines(
        TRAINING
        | {"phase": "Recovering", "recovery": RECOVERY, "conditions": [*TRAINING["conditions"], condition]}
    )
    assert found[-4:] == [
        "restarts    2, goodput 97.1%",
        "incident    RankRestarted 1m30s ago: rank 25 was killed by SIGKILL",
        "            worker-2 rank 25 on gpu-7; resumed from iteration 24,900, 12 iterations repeated;"
        " lost 10 s (detect 1.0 s, load 9.0 s)",
        "condition   Recovering (RankRestarted): rank 25 restarts",
    ]
    assert not [line for line in found if line.startswith("end ")]


def test_a_refused_recipe_shows_every_error_on_its_line() -> None:
    planned = {
        "type": "Planned", "status": "False", "reason": "Refused",
        "message": "spec.accelerator.count: 12 is not a multiple of 8; set 8\n"
        "spec.training.lr: is missing; set it",
    }  # fmt: skip
    stalled = {"type": "Stalled", "status": "True", "reason": "Refused", "message": "twice"}
    assert lines({"phase": "Refused", "conditions": [planned, stalled]})[2:] == [
        "condition   not Planned (Refused): spec.accelerator.count: 12 is not a multiple of 8; set 8",
        "            spec.training.lr: is missing; set it",
    ]


def test_pending_pods_and_warnings_are_reported() -> None:
    status = {
        "phase": "Pending",
        "conditions": [
            {
                "type": "Running",
                "status": "False",
                "reason": "VolumeClaimMissing",
                "message": "corpus does not exist",
            }
        ],
        "warnings": [{"reason": "CheckpointVolumeFull", "message": "91% used"}],
    }
    assert lines(status)[2:] == [
        "condition   not Running (VolumeClaimMissing): corpus does not exist",
        "warning     CheckpointVolumeFull: 91% used",
    ]


def test_a_run_that_succeeded_shows_no_conditions() -> None:
    done = TRAINING | {
        "phase": "Succeeded",
        "progress": {"iteration": 100000, "trainIters": 100000},
        "conditions": [
            {"type": "Running", "status": "False", "reason": "Succeeded", "message": ""},
            {"type": "Succeeded", "status": "True", "reason": "Succeeded", "message": ""},
        ],
    }
    assert lines(done)[2:] == [
        f"progress    {FULL} 100.0%, 100,000 of 100,000 iterations",
        "checkpoint  iteration 24,900, 6m00s ago",
    ]


def test_a_recipe_that_the_operator_has_not_reached_and_an_edit_it_has_not() -> None:
    unseen = {"observedGeneration": -1}  # the default of the CRD
    assert lines(None) == lines(unseen) == ["run         research/run", "phase       not reconciled yet"]
    assert "the newest edit is not observed yet" in lines(TRAINING | {"observedGeneration": 1})[1]
    assert lines({"progress": {"iteration": 5}})[-1] == "progress    iteration 5"


@pytest.mark.parametrize("width", [80, 120])
def test_long_texts_are_wrapped_to_the_width(width: int) -> None:
    found = plain(lines(TRAINING | {"recovery": RECOVERY}, width))
    assert max(map(len, found)) <= width


KUBECTL = """#!/bin/sh
echo "$@" >> {folder}/calls
n=$(wc -l < {folder}/calls)
cat {folder}/answer.$n 2>/dev/null && exit 0
[ -f {folder}/interrupt.$n ] && kill -INT $PPID && exit 1
cat {folder}/failure.$n >&2 2>/dev/null && exit 1
echo 'Error from server (NotFound): megatronrecipes "run" not found' >&2
exit 1
"""


@pytest.fixture
def answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of the answers of a fake kubectl: answer.1, answer.2 and so on."""
    program = tmp_path / "kubectl"
    program.write_text(KUBECTL.format(folder=tmp_path))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path


def answer(folder: Path, *statuses: dict[str, Any]) -> None:
    for number, status in enumerate(statuses, 1):
        (folder / f"answer.{number}").write_text(json.dumps({"metadata": METADATA, "status": status}))


def megatron(*words: str) -> Result:
    return CliRunner().invoke(cli, words, catch_exceptions=False)


def test_the_command_reads_the_recipe_and_prints_it(answers: Path) -> None:
    answer(answers, TRAINING)
    result = megatron("status", "run", "-n", "research")
    assert (result.exit_code, result.stderr) == (0, "")
    assert "25,000 of 100,000 iterations" in result.stdout
    assert "\x1b" not in result.stdout
    call = "--namespace=research get megatronrecipes.megatron.training run --output json"
    assert (answers / "calls").read_text().splitlines() == [call]


def test_json_is_the_status_with_the_name(answers: Path) -> None:
    answer(answers, TRAINING)
    printed = json.loads(megatron("status", "run", "-o", "json").stdout)
    assert printed == {"name": "run", "namespace": "research", **TRAINING}


def test_watch_prints_each_change_once_and_ends_with_the_run(
    answers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("megatron_operator.cli.run_status.INTERVAL", 0.0)
    answer(answers, TRAINING, TRAINING, TRAINING | {"phase": "Failed"})
    result = megatron("status", "run", "--watch")
    assert result.exit_code == 0
    assert result.stdout.count("phase       ") == 2
    assert len((answers / "calls").read_text().splitlines()) == 3


def test_watch_goes_on_until_the_newest_edit_of_a_run_that_had_ended_is_observed(
    answers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("megatron_operator.cli.run_status.INTERVAL", 0.0)
    refused = {"phase": "Refused", "observedGeneration": 1}
    answer(answers, refused, TRAINING, TRAINING | {"phase": "Succeeded"})
    result = megatron("status", "run", "--watch")
    assert result.exit_code == 0
    assert result.stdout.count("phase       ") == 3


@pytest.fixture
def watching(answers: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of a fake kubectl whose first answer is a run that trains; its second request fails."""
    monkeypatch.setattr("megatron_operator.cli.run_status.INTERVAL", 0.0)
    answer(answers, TRAINING)
    (answers / "failure.2").write_text("The connection to the server 10.0.0.1:6443 was refused\n")
    return answers


def test_watch_goes_on_after_requests_that_fail_and_reports_the_first(watching: Path) -> None:
    (watching / "failure.3").write_text("error: unexpected EOF\n")
    ended = {"metadata": METADATA, "status": TRAINING | {"phase": "Succeeded"}}
    (watching / "answer.4").write_text(json.dumps(ended))
    result = megatron("status", "run", "--watch")
    assert result.exit_code == 0
    assert result.stdout.count("phase       ") == 2
    [reported] = result.stderr.splitlines()
    assert reported.startswith("recipe run: The connection to the server 10.0.0.1:6443 was refused; ")
    assert reported.endswith(" (tried again for 120 s)")


def test_watch_ends_with_the_error_where_nothing_answers(
    watching: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("megatron_operator.cli.status.PATIENCE", -1.0)
    result = megatron("status", "run", "--watch")
    assert result.exit_code == 2
    assert "The connection to the server 10.0.0.1:6443 was refused" in result.stderr
    assert len((watching / "calls").read_text().splitlines()) == 2


def test_watch_ends_with_the_deletion_of_the_recipe(watching: Path) -> None:
    result = megatron("status", "run", "--watch")
    assert result.exit_code == 2
    assert '(NotFound): megatronrecipes "run" not found' in result.stderr
    assert len((watching / "calls").read_text().splitlines()) == 3


@pytest.fixture
def interruptible() -> Iterator[None]:
    """SIGINT interrupts, also where the tests are a background job of a script, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_during_a_request_ends_a_watch_as_one_between_two_does(watching: Path) -> None:
    (watching / "interrupt.2").touch()
    result = megatron("status", "run", "--watch")
    assert (result.exit_code, result.stderr) == (0, "")


@pytest.mark.usefixtures("answers")
def test_a_missing_recipe_is_an_error() -> None:
    result = megatron("status", "run")
    assert result.exit_code == 2
    assert '(NotFound): megatronrecipes "run" not found' in result.stderr


def test_a_preparation_shows_what_is_done_and_how_long_it_takes() -> None:
    preparation = {
        "documents": 1234567,
        "bytesDone": 3 << 30,
        "bytesTotal": 12 << 30,
        "bytesPerSecond": 26214400.0,
        "eta": "2026-01-01T12:06:00Z",
    }
    shown = lines({"phase": "Preparing", "observedGeneration": 2, "preparation": preparation})
    assert f"prepared    {'█' * 6}{'░' * 18} 25.0%, 3.0 of 12.0 GiB, 1,234,567 documents" in shown
    assert any(line.startswith("speed       25.0 MiB/s, done in 6") for line in shown)
    assert not [line for line in lines({"phase": "Starting", "preparation": preparation}) if "GiB" in line]


def test_a_preparation_that_has_just_begun_shows_no_end() -> None:
    preparation = {"documents": 0, "bytesDone": 0, "bytesTotal": 0}
    shown = lines({"phase": "Preparing", "preparation": preparation})
    assert "prepared    " + "░" * 24 + " 0.0%, 0.0 of 0.0 GiB, 0 documents" in shown
    assert not [line for line in shown if line.startswith("speed")]


def test_weights_that_were_imported_and_exported_are_shown_with_their_folders() -> None:
    imported = {"source": "/data/llama", "path": "/data/llama-megatron", "tensors": 1234}
    exported = {"source": "/checkpoints/run", "path": "/data/out"}
    shown = lines({"phase": "Succeeded", "imported": imported, "exported": exported})
    assert "imported    /data/llama-megatron, 1,234 tensors audited" in shown
    assert "exported    /data/out" in shown


@pytest.mark.parametrize("kind", ["Imported", "Exported"])
def test_weights_that_are_not_converted_yet_are_a_condition_and_converted_ones_are_none(kind: str) -> None:
    condition = {"type": kind, "status": "True", "reason": kind, "message": "61 tensors"}
    assert lines(TRAINING | {"conditions": [condition]}) == lines(TRAINING | {"conditions": []})
    condition |= {"status": "False", "reason": "Queued", "message": "the queue is full"}
    assert lines({"conditions": [condition]})[-1] == f"condition   not {kind} (Queued): the queue is full"


def test_the_best_checkpoint_and_its_export_are_shown_with_iteration_and_validation_loss() -> None:
    done = {
        "source": "/checkpoints/run",
        "path": "/data/out/best",
        "iteration": 1200,
        "validationLoss": 2.125,
    }
    checkpoint = {"iteration": 2000, "bestIteration": 1200, "bestLoss": 2.125}
    shown = lines({"phase": "Succeeded", "exportedBest": done, "checkpoint": checkpoint})
    assert "best        /data/out/best, iteration 1,200 with validation loss 2.125" in shown
    assert "checkpoint  iteration 2,000; best is 1,200, validation loss 2.125" in shown


def test_ranks_that_are_slow_now_are_shown_by_pod() -> None:
    slow = {"pod": "worker-1", "node": "gpu-7", "iteration": 40, "since": "2026-01-01T11:00:00Z"}
    figures = {"slowdown": 1.84, "ownSeconds": 0.92, "peerSeconds": 0.5}
    figures["aFieldOfALaterVersion"] = 1
    past = slow | figures | {"rank": 3, "until": "2026-01-01T11:20:00Z"}
    shown = lines(TRAINING | {"stragglers": [past, *(slow | figures | {"rank": rank} for rank in (8, 9))]})
    assert [line for line in shown if "times as long" in line] == [
        "slow        ranks 8, 9 (worker-1 on gpu-7): 1.84 times as long as the peers for the own work, "
        "0.92 s of an iteration against 0.5 s; all others wait"
    ]


@pytest.mark.parametrize(("phase", "label"), [("Importing", "import"), ("Exporting", "export")])
def test_the_progress_of_a_conversion_is_shown_in_its_phase(phase: str, label: str) -> None:
    conversion = {
        "step": "audit", "tensorsDone": 145, "tensorsTotal": 582, "bytesDone": 8 << 30, "bytesTotal": 32 << 30
    }  # fmt: skip
    shown = lines({"phase": phase, "conversion": conversion})
    text = f"{'█' * 6}{'░' * 18} 25.0%, 8.0 of 32.0 GiB, 145 of 582 tensors of the audit"
    assert f"{label:<12}{text}" in shown
    conversion["step"] = "convert"
    assert f"{label:<12}{text.removesuffix(' of the audit')}" in lines(
        {"phase": phase, "conversion": conversion}
    )
    assert not [line for line in lines({"phase": "Training", "conversion": conversion}) if "tensors" in line]


def test_the_progress_of_a_download_is_shown_in_bytes() -> None:
    conversion = {"step": "download", "tensorsDone": 0, "tensorsTotal": 0, "bytesDone": 4 << 30}
    shown = lines({"phase": "Importing", "conversion": conversion | {"bytesTotal": 16 << 30}})
    assert f"{'import':<12}{'█' * 6}{'░' * 18} 25.0%, 4.0 of 16.0 GiB downloaded" in shown


def test_a_check_of_data_that_were_prepared_elsewhere_shows_what_is_read() -> None:
    preparation = {"documents": 0, "bytesDone": 3 << 30, "bytesTotal": 12 << 30}
    shown = lines({"phase": "Checking", "preparation": preparation})
    assert f"checked     {'█' * 6}{'░' * 18} 25.0%, 3.0 of 12.0 GiB" in shown
    preparation["documents"] = 7
    shown = lines({"phase": "Checking", "preparation": preparation})
    assert f"prepared    {'█' * 6}{'░' * 18} 25.0%, 3.0 of 12.0 GiB, 7 documents" in shown
