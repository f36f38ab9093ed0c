"""The picture of the notebook: the run that is played, and what is drawn of the cells."""

from itertools import pairwise

from megatron_operator.lifecycle.write_delay import INTERVAL
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from scripts.notebook_picture import (
    ITERATIONS,
    RESTART,
    SAVE_INTERVAL,
    STEP_SECONDS,
    missing,
    page,
    statuses,
)

CHART = new_output("display_data", {"image/png": "cGljdHVyZQ==", "text/plain": "<Figure>"})
TABLE = new_output(
    "execute_result", {"text/html": "<table><tr><td>2.5</td></tr></table>", "text/plain": "2.5"}
)
ATTEMPTS = new_output("stream", text="attempt 1: the start to 130, ended by <SIGKILL>\n")


def test_the_run_falls_back_once_and_ends() -> None:
    found = list(statuses())
    iterations = [each["progress"]["iteration"] for each in found]
    falls = [before for before, after in pairwise(iterations) if after <= before]
    assert falls == [RESTART]
    restarts = [each["recovery"]["restarts"] for each in found]
    assert restarts[iterations.index(RESTART) - 1] == 0
    assert restarts[iterations.index(RESTART)] == 1
    assert [each["phase"] for each in found].count("Succeeded") == 1
    assert found[-1]["phase"] == "Succeeded"
    assert iterations[-1] == ITERATIONS


def test_progress_alone_is_written_as_seldom_as_the_operator_writes_it() -> None:
    for before, after in pairwise(statuses()):
        number = after["progress"]["iteration"]
        passed = (number - before["progress"]["iteration"]) * STEP_SECONDS
        happens = after["phase"] != before["phase"] or after["recovery"] != before["recovery"]
        assert passed >= INTERVAL or happens or number % SAVE_INTERVAL == 0, number


def test_cells_and_outputs_are_drawn_and_text_is_escaped() -> None:
    cells = [new_markdown_cell("## Watch `it`"), new_code_cell("a < b", outputs=[CHART, TABLE, ATTEMPTS])]
    html = page(new_notebook(cells=cells))
    assert "<h2>Watch <code>it</code></h2>" in html
    assert '<img src="data:image/png;base64,cGljdHVyZQ==">' in html
    assert "<td>2.5</td>" in html
    assert "ended by &lt;SIGKILL&gt;" in html
    assert "a < b" not in html


def test_outputs_that_are_missing_are_named() -> None:
    assert missing(new_notebook(cells=[new_code_cell("x", outputs=[CHART, TABLE, ATTEMPTS])])) == []
    assert missing(new_notebook(cells=[new_code_cell("x", outputs=[TABLE])])) == ["chart", "attempts"]
    assert missing(new_notebook(cells=[new_markdown_cell("x")])) == ["chart", "table", "attempts"]
