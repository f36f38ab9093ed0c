"""Draws docs/notebook.png from examples/run.ipynb, executed: `make notebook-picture`.

A Jupyter kernel executes the notebook against `testkit.api_stand_in`, which plays a run of 200 iterations
with a restart; nothing is trained. The cells and their outputs are a page of this script, not Jupyter's, in a
headless Chromium. Exits with 1 where a cell has failed or the chart or the table is missing.
"""

import asyncio
import base64
import io
import logging
import math
import os
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from html import escape
from pathlib import Path
from typing import Any, Final

import nbformat
from markdown_it import MarkdownIt
from megatron_operator.lifecycle.write_delay import INTERVAL
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from PIL import Image
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from testkit.api_stand_in import ApiStandIn
from testkit.chromium import BrowserMissingError, chromium
from testkit.waiting import LONG_DEADLINE, wait_until

ROOT: Final = Path(__file__).parents[1]
PICTURE: Final = ROOT / "docs" / "notebook.png"
NAME: Final = "from-a-notebook"
MASTER: Final = f"{NAME}-master-0"
ITERATIONS: Final = 200
STEP_SECONDS: Final = 3.0
SAVE_INTERVAL: Final = 40
RESTART: Final = 130
"""Iteration at which rank 3 dies."""
RESUMED: Final = RESTART // SAVE_INTERVAL * SAVE_INTERVAL
"""Iteration of the newest checkpoint then."""
WIDTH: Final = 900
INCIDENT: Final = {
    "number": 1, "time": "2026-01-01T10:06:30Z", "kind": "rank", "pod": "worker-0", "rank": 3,
    "cause": "rank 3 was killed by SIGKILL", "iteration": RESTART, "resumedFrom": RESUMED,
    "lostIterations": RESTART - RESUMED, "seconds": {"detect": 0.3, "load": 1.3, "redo": 27.0},
    "recoveredAt": "2026-01-01T10:06:35Z",
}  # fmt: skip
STYLE: Final = """
body { margin: 0; padding: 8px 20px; width: 860px; font: 14px/1.45 "DejaVu Sans", sans-serif; color: #16202a }
h1 { font-size: 22px; margin: 10px 0 4px; } h2 { font-size: 17px; margin: 14px 0 2px; } p { margin: 4px 0; }
pre { font: 12px/1.4 "DejaVu Sans Mono", monospace; margin: 0; white-space: pre-wrap; }
.cell { display: grid; grid-template-columns: 42px 1fr; margin: 4px 0; align-items: start; }
.count { color: #4d5b68; font: 12px "DejaVu Sans Mono", monospace; padding-top: 7px; }
.code { background: #f4f6f8; border: 1px solid #c3ccd5; border-radius: 3px; padding: 6px 8px; }
.output { padding: 3px 8px; } img { max-width: 100%; display: block; }
table { border-collapse: collapse; font-size: 12px; }
th, td { text-align: right; padding: 3px 10px; border: 0; white-space: nowrap; }
tbody tr:nth-child(odd) { background: #f4f6f8; } th { font-weight: 600; }
"""


def loss(iteration: int) -> float:
    """A loss that falls as a power law."""
    return 5.5 + 5.4 / (1 + iteration / 12) ** 0.6 + 0.06 * math.sin(iteration * 0.9)


def log() -> str:
    """Megatron's log lines of the master, one for every tenth iteration."""
    return "\n".join(
        f" [2026-01-01 10:00:00.123456] iteration {number:8d}/{ITERATIONS:8d} |"
        f" consumed samples: {number * 8:12d} |"
        f" elapsed time per iteration (ms): {1000 * STEP_SECONDS + 4 * math.sin(number):.1f} |"
        f" learning rate: {1.5e-4 * min(1.0, number / 40):.6E} | global batch size:     8 |"
        f" lm loss: {loss(number):.6E} | loss scale: 1.0 | grad norm: {1.9 - number / 250:.3f} |"
        " number of skipped iterations:   0 | number of nan iterations:   0 |"
        for number in range(10, ITERATIONS + 1, 10)
    )


def statuses() -> Iterator[dict[str, Any]]:
    """What the operator writes: progress alone once in `write_delay.INTERVAL`, all else at once.

    That is the first iteration after a start, a checkpoint, the restart and the end.
    """
    recovery: dict[str, Any] = {"restarts": 0, "goodput": 1.0}
    restarted = {"restarts": 1, "lastIncident": INCIDENT, "history": [INCIDENT], "goodput": 0.946}
    for first, last in ((1, RESTART), (RESUMED + 1, ITERATIONS)):
        written = first
        for number in range(first, last + 1):
            waits = (number - written) * STEP_SECONDS < INTERVAL
            if number not in (first, last) and number % SAVE_INTERVAL and waits:
                continue
            phase, written = "Training", number
            if number == last:
                phase, recovery = "Succeeded" if last == ITERATIONS else "Recovering", restarted
            yield {
                "phase": phase,
                "progress": {"iteration": number, "trainIters": ITERATIONS, "lmLoss": loss(number)},
                "recovery": recovery,
            }


def follows(api: ApiStandIn) -> bool:
    """Whether a watch was opened."""
    return any("watch" in query for _, _, query in api.requests)


def execute(notebook: Any, folder: Path) -> None:
    """Run all cells while a stand-in plays the run. Raises CellExecutionError."""
    with ApiStandIn().running() as api, ThreadPoolExecutor() as background:
        api.write_kubeconfig(folder / "kubeconfig")
        os.environ["KUBECONFIG"] = str(folder / "kubeconfig")
        for variable in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "MPLCONFIGDIR"):
            os.environ[variable] = str(folder / variable.lower())
        first, *others = statuses()
        api.first_status = first | {"observedGeneration": 1}
        labels = {"training.kubeflow.org/replica-type": "master", "training.kubeflow.org/replica-index": "0"}
        api.pods = [{"metadata": {"name": MASTER, "labels": labels}, "status": {"phase": "Running"}}]
        api.logs = {(MASTER, False): log()}

        def train() -> None:
            wait_until("the notebook to follow the run", lambda: follows(api))
            for status in others:
                api.set_status(NAME, **status)

        training = background.submit(train)
        NotebookClient(notebook, timeout=int(LONG_DEADLINE)).execute()
        training.result()


def page(notebook: Any) -> str:
    """The notebook as HTML."""
    parts = [_cell(cell) for cell in notebook.cells]
    colors = HtmlFormatter().get_style_defs(".highlight")
    return f'<!doctype html><meta charset="utf-8"><style>{colors}{STYLE}</style>' + "".join(parts)


def _cell(cell: Any) -> str:
    if cell.cell_type == "markdown":
        return str(MarkdownIt().enable("table").render(cell.source))
    code = highlight(cell.source, PythonLexer(), HtmlFormatter(nobackground=True))
    rows = [f'<span class="count">[{cell.execution_count}]</span><div class="code">{code}</div>']
    rows += [f'<span></span><div class="output">{_output(each)}</div>' for each in cell.outputs]
    return "".join(f'<div class="cell">{row}</div>' for row in rows)


def _output(output: Any) -> str:
    data = output.get("data", {})
    if "image/png" in data:
        return f'<img src="data:image/png;base64,{data["image/png"].strip()}">'
    if "text/html" in data:
        return str(data["text/html"])
    return f"<pre>{escape(data.get('text/plain', output.get('text', '')))}</pre>"


def missing(notebook: Any) -> list[str]:
    """Kinds of output that no cell has: the live chart, the table of the log, the summary of attempts."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    kinds = {kind for output in outputs for kind in output.get("data", {})}
    found = [name for kind, name in (("image/png", "chart"), ("text/html", "table")) if kind not in kinds]
    return found + ([] if any("attempt" in output.get("text", "") for output in outputs) else ["attempts"])


async def draw(html: str) -> bytes:
    """The page as PNG. Raises BrowserMissingError."""
    async with chromium() as tab:
        address = "data:text/html;base64," + base64.b64encode(html.encode()).decode()
        await tab.open(address, WIDTH, 600, dark=False)
        return await tab.screenshot(whole=True)


def main() -> int:
    """Write the picture. 0 where the notebook has all outputs."""
    # The kernel ends its watches, which aiohttp reports.
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)
    notebook = nbformat.read(ROOT / "examples" / "run.ipynb", as_version=4)
    try:
        with tempfile.TemporaryDirectory() as folder:
            execute(notebook, Path(folder))
        png = asyncio.run(draw(page(notebook)))
    except (BrowserMissingError, CellExecutionError) as error:
        print(error, file=sys.stderr)
        return 1 if isinstance(error, CellExecutionError) else 2
    file = io.BytesIO()
    Image.open(io.BytesIO(png)).convert("RGB").quantize(128).save(file, "png", optimize=True)
    PICTURE.write_bytes(file.getvalue())
    print(f"docs/{PICTURE.name}: {len(file.getvalue()) // 1000} kB")
    if lacking := missing(notebook):
        print(f"no output: {', '.join(lacking)}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
