"""The loss over iterations, from lines as Megatron prints them."""

import builtins
from typing import Any

import pandas
import pytest
from megatron_operator.sdk import LossPoint, MissingExtraError, Run
from megatron_operator.sdk.losses import data_frame, loss_points

from testkit.api_stand_in import ApiStandIn
from tests.unit.sdk.runs import line, pod


@pytest.mark.parametrize(
    "loss", ["-", "+e", ".", "1e", "1e999", "1" * 1900, "nan", "--5"], ids=lambda loss: loss[:5]
)
def test_a_loss_that_is_no_finite_number_is_left_out(loss: str) -> None:
    assert loss_points([f"2026-01-01T10:00:00Z  iteration 1/ 9 | lm loss: {loss} |"]) == []


def test_other_values_that_are_no_finite_numbers_are_unknown() -> None:
    text = (
        "2026-01-01T10:00:00Z  iteration 1/ 9 | consumed samples: 1e999 | learning rate: - | lm loss: 2.5 |"
    )
    [point] = loss_points([text])
    assert (point.lm_loss, point.consumed_samples, point.learning_rate) == (2.5, None, None)
    assert loss_points([f"2026-01-01T10:00:00Z  iteration {'9' * 5000}/ 9 | lm loss: 2.5 |"]) == []


def test_a_line_of_megatron_is_a_point() -> None:
    assert loss_points(["2026-01-01T10:00:00Z building the model", line(10, 7.5)]) == [
        LossPoint(10, "2026-01-01T10:00:00.5Z", 7.5, 1.5e-4, 1.234, 0.25, 80, 8)
    ]


def test_repeated_iterations_replace_the_discarded_ones_and_all_after_them() -> None:
    lines = [line(1, 9.0), line(2, 8.0), line(3, 7.0), line(2, 8.5), line(3, 7.5)]
    assert [(p.iteration, p.lm_loss) for p in loss_points(lines)] == [(1, 9.0), (2, 8.5), (3, 7.5)]
    assert [p.iteration for p in loss_points([*lines, line(2, 8.6)])] == [1, 2]


@pytest.mark.parametrize(
    "text",
    [
        line(10, 7.5).replace("lm loss", "validation loss"),
        line(10, 7.5).replace("lm loss: 7.500000E+00", "lm loss: nan"),
        "2026-01-01T10:00:00Z iteration 10/200",
        "",
    ],
)
def test_a_line_without_a_loss_is_no_point(text: str) -> None:
    assert loss_points([text]) == []


def test_the_loss_of_a_run_is_a_data_frame(run: Run, api: ApiStandIn) -> None:
    api.pods = [pod("worker", 0), pod("master", 0)]
    api.logs = {("tiny-worker-0", False): "\n".join(line(n, 10 - n) for n in (1, 2))}
    frame = run.loss()
    assert frame.index.tolist() == [1, 2]
    assert frame["lm_loss"].tolist() == [9.0, 8.0]
    assert frame["time"].dt.tz is not None
    assert [point.lm_loss for point in run.loss_points()] == [9.0, 8.0]


def test_a_run_that_printed_no_loss_has_an_empty_frame() -> None:
    frame = data_frame([])
    assert isinstance(frame, pandas.DataFrame)
    assert frame.empty
    assert "lm_loss" in frame.columns


def test_without_pandas_the_error_names_the_extra(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    original = builtins.__import__

    def without_pandas(name: str, *rest: Any, **named: Any) -> Any:
        if name == "pandas":
            raise ModuleNotFoundError("No module named 'pandas'")
        return original(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", without_pandas)
    with pytest.raises(MissingExtraError, match=r"install megatron-operator\[pandas\], or use loss_points"):
        run.loss()
