"""`megatron ledger`: the account of a status, and the command against a fake kubectl."""

import json
import stat
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from megatron_operator.api.times import seconds
from megatron_operator.cli.main import cli
from megatron_operator.cli.run_ledger import run_ledger

NOW = seconds("2026-01-02T00:00:00Z") or 0.0
LOST = "worker-3: rank 25 was killed by SIGKILL"
STATUS: dict[str, Any] = {
    "phase": "Training",
    "ledger": {
        "settledAt": "2026-01-01T02:00:00Z",
        "seconds": {"prepare": 1800.0, "queue": 5400.0},
        "losses": [
            {"category": "queue", "cause": "Queued", "seconds": 5400.0},
            {"category": "prepare", "cause": "Planning", "seconds": 1800.0},
        ],
        "marks": [
            {"time": "2026-01-01T02:00:00Z", "category": "load", "cause": "FirstStart", "accelerators": 64},
            {"time": "2026-01-01T03:00:00Z", "category": "train", "accelerators": 64},
        ],
        "saveSeconds": 900.0,
    },
    "recovery": {
        "history": [
            {
                "number": 1,
                "time": "2026-01-01T12:00:00Z",
                "kind": "hang",
                "cause": LOST,
                "node": "gpu-7",
                "seconds": {"detect": 600.5, "start": 99.5, "load": 200.0, "redo": 2700.0},
            }
        ]
    },
}
METADATA = {"name": "run", "namespace": "research", "creationTimestamp": "2026-01-01T00:00:00Z"}
RECIPE: dict[str, Any] = {"metadata": METADATA, "status": STATUS}


def found(price: float | None = None, **status: Any) -> dict[str, Any]:
    result = run_ledger({"metadata": METADATA, "status": STATUS | status}, NOW, price)
    assert result is not None
    return result


def test_the_categories_add_up_to_the_wall_clock() -> None:
    ledger = found()
    spent = {each["category"]: each["seconds"] for each in ledger["categories"]}
    assert spent == {
        "queue": 5400,
        "prepare": 1800,
        "start": 99.5,
        "load": 3800,
        "train": 86_400 - 7200 - 3600 - 3600 - 900,
        "save": 900,
        "redo": 2700,
        "hang": 600.5,
    }
    assert ledger["total"]["seconds"] == sum(spent.values()) == 86_400
    assert sum(each["share"] for each in ledger["categories"]) == pytest.approx(1)
    assert {"category": "hang", "cause": LOST, "node": "gpu-7", "seconds": 600.5} in ledger["losses"]


def test_only_accelerators_that_are_held_cost_anything() -> None:
    ledger = found(price=2.5)
    assert ledger["total"]["gpuHours"] == 22 * 64
    assert ledger["total"]["cost"] == 22 * 64 * 2.5
    assert [each["cost"] for each in ledger["categories"] if each["category"] == "queue"] == [0.0]
    assert found()["total"]["cost"] is None


def test_a_run_that_is_over_ends_with_its_last_state() -> None:
    assert found(phase="Succeeded")["until"] == "2026-01-01T03:00:00Z"


def test_a_recipe_without_a_ledger_has_none() -> None:
    assert run_ledger({"metadata": METADATA}, NOW, None) is None


@pytest.fixture
def kubectl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    program, answer = tmp_path / "kubectl", tmp_path / "answer"
    program.write_text(f"#!/bin/sh\ncat {answer}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    answer.write_text(json.dumps(RECIPE))
    return answer


def megatron(*words: str) -> Result:
    return CliRunner().invoke(cli, ["ledger", "run", *words], catch_exceptions=False)


@pytest.mark.usefixtures("kubectl")
def test_the_table_has_categories_and_losses() -> None:
    result = megatron("--price", "2")
    assert result.exit_code == 0
    assert "CATEGORY  TIME" in result.output
    assert "GPU-HOURS" in result.output
    assert "COST" in result.output
    (hang,) = [line for line in result.output.splitlines() if LOST in line and line.startswith("hang")]
    assert hang.split()[:3] == ["hang", "10m00s", "gpu-7"]


def test_programs_get_the_same_and_the_price_of_the_platform(kubectl: Path) -> None:
    assert json.loads(megatron("-o", "json").output)["price"] is None
    from tests.unit.lifecycle.test_ledger_state import PLAN

    plan = PLAN.model_copy(update={"price_per_gpu_hour": 3.0}).wire()
    kubectl.write_text(json.dumps({"metadata": METADATA, "status": STATUS | {"plan": plan}}))
    assert json.loads(megatron("-o", "json").output)["price"] == 3.0
    assert json.loads(megatron("-o", "json", "--price", "2").output)["price"] == 2.0


def test_a_recipe_without_a_ledger_is_an_error(kubectl: Path) -> None:
    kubectl.write_text(json.dumps({"metadata": METADATA, "status": {}}))
    result = megatron()
    assert result.exit_code == 2
    assert "has no ledger of time yet" in result.output
