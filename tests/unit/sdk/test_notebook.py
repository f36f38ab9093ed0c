"""examples/run.ipynb, executed by a Jupyter kernel against an API server within the process."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from testkit.api_stand_in import ApiStandIn
from testkit.waiting import LONG_DEADLINE, wait_until
from tests.unit.docs.blocks import ROOT
from tests.unit.sdk.runs import INCIDENT, line, pod

NAME = "from-a-notebook"
MASTER = f"{NAME}-master-0"


@pytest.fixture
def notebook() -> Any:
    return nbformat.read(ROOT / "examples" / "run.ipynb", as_version=4)


@pytest.fixture
def environment(kubeconfig: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the kernel."""
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    for variable in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "MPLCONFIGDIR"):
        monkeypatch.setenv(variable, str(tmp_path / variable.lower()))


def outputs(notebook: Any, kind: str) -> list[Any]:
    return [
        output["data"][kind]
        for cell in notebook.cells
        for output in cell.get("outputs", [])
        if kind in output.get("data", {})
    ]


def progress(iteration: int, loss: float) -> dict[str, Any]:
    return {"iteration": iteration, "trainIters": 200, "lmLoss": loss}


def test_the_notebook_is_stored_without_outputs(notebook: Any) -> None:
    nbformat.validate(notebook)
    assert not any(cell.get("outputs") for cell in notebook.cells)


@pytest.mark.usefixtures("environment")
def test_the_notebook_plans_starts_and_draws_a_run(api: ApiStandIn, notebook: Any) -> None:
    api.first_status = {"phase": "Training", "observedGeneration": 1, "progress": progress(10, 9.0)}
    master = pod("master", 0)
    api.pods = [{**master, "metadata": master["metadata"] | {"name": MASTER}}]
    api.logs = {(MASTER, False): "\n".join(line(n, 10 - n / 10) for n in (10, 20, 30))}

    def train() -> None:
        wait_until(
            "the notebook to follow the run", lambda: any("watch" in query for _, _, query in api.requests)
        )
        api.set_status(NAME, progress=progress(20, 8.0), recovery={"restarts": 1, "history": [INCIDENT]})
        api.set_status(NAME, progress=progress(30, 7.0), phase="Succeeded")

    with ThreadPoolExecutor() as background:
        training = background.submit(train)
        NotebookClient(notebook, timeout=int(LONG_DEADLINE)).execute()
        training.result()
    assert len(outputs(notebook, "image/png")) == 1, "one chart, which is updated"
    [table] = outputs(notebook, "text/html")
    assert "lm_loss" in table
    printed = "".join(o["text"] for cell in notebook.cells for o in cell.get("outputs", []) if "text" in o)
    assert "attempt 1: the start to 130, ended by rank 3 was killed by SIGKILL" in printed
    assert "attempt 2: iteration 120 to 30, the newest" in printed
    assert api.recipes == {}, "the last cell deletes the run"
