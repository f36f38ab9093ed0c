"""The examples of docs/python.md, in order, against an API server within the process."""

from pathlib import Path
from typing import Any

import pytest
from megatron_operator.sdk import Recipe

from testkit.api_stand_in import ApiStandIn
from tests.unit.docs.blocks import ROOT, blocks
from tests.unit.sdk.runs import INCIDENT, line, pod

PAGE = ROOT / "docs" / "python.md"


def test_the_examples_run(
    api: ApiStandIn, kubeconfig: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("megatron_operator.sdk.run._default", None)
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    monkeypatch.setenv("MPLBACKEND", "Agg")
    api.first_status = {
        "phase": "Succeeded",
        "progress": {"iteration": 200, "trainIters": 200, "lmLoss": 2.25},
        "recovery": {"restarts": 1, "lastIncident": INCIDENT, "history": [INCIDENT]},
    }
    api.pods = [
        {**pod("master", 0), "metadata": pod("master", 0)["metadata"] | {"name": "first-try-master-0"}}
    ]
    api.logs = {("first-try-master-0", False): "\n".join(line(n, 10 - n) for n in (1, 2, 3))}
    api.first_status["plan"] = Recipe("llama3-8b", accelerator="h100-sxm", count=64).plan().plan.wire()
    names: dict[str, Any] = {"__name__": "page"}
    examples = [block for block in blocks() if block.page == PAGE]
    assert len(examples) >= 8
    for example in examples:
        exec(compile(example.text, str(PAGE), "exec"), names)
    printed = capsys.readouterr().out
    assert (
        "spec.accelerator.count | 12 is not a multiple of the 8 accelerators of a node | set 8 or 16"
        in printed
    )
    assert "Succeeded 200 2.25" in printed
    assert "ended by rank 3 was killed by SIGKILL" in printed
    assert names["axes"].get_ylabel() == "loss"
    assert api.recipes == {}, "the last example deletes the run"
