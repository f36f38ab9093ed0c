"""The interval that is printed beside an estimated speed."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner
from megatron_operator.api.status import Expected
from megatron_operator.cli.main import cli
from megatron_operator.planner import plan
from megatron_operator.planner.estimate import uncertainty

LLAMA = ("plan", "--recipe", "llama3-8b", "--gpus", "8", "--accelerator")


def estimated(resolved: Any) -> Expected:
    found = plan(resolved).expected
    assert found is not None
    return found


def width(resolved: Any) -> float:
    e = estimated(resolved)
    assert e.tokens_per_second_per_gpu_low is not None
    assert e.tokens_per_second_per_gpu_high is not None
    assert e.tokens_per_second_per_gpu_low < e.tokens_per_second_per_gpu < e.tokens_per_second_per_gpu_high
    return e.tokens_per_second_per_gpu_high / e.tokens_per_second_per_gpu


@pytest.mark.parametrize(
    ("accelerator", "training", "group"),
    [
        ("h100-sxm", {}, "bf16 on hopper"),
        ("h100-sxm", {"fp8Format": "hybrid"}, "fp8 on hopper"),
        ("a100-80", {}, "bf16 on ampere"),
        ("gb200", {"fp8Format": "e4m3", "fp8Recipe": "mxfp8"}, "mxfp8 on blackwell"),
        ("gb200", {}, uncertainty.UNMEASURED),
        ("h100-sxm", {"bf16": False}, uncertainty.UNMEASURED),
    ],
)
def test_the_interval_is_that_of_precision_and_chips(
    resolve: Callable[..., Any], accelerator: str, training: dict[str, Any], group: str
) -> None:
    resolved = resolve("llama3-8b", 64, accelerator, training=training)
    assert width(resolved) == pytest.approx(uncertainty.table()["dense"][group])


def test_four_bits_were_not_measured(resolve: Callable[..., Any]) -> None:
    resolved = resolve("llama3-8b", 64, "gb200", training={"fp4Format": "e2m1"})
    assert width(resolved) == pytest.approx(uncertainty.table()["dense"][uncertainty.UNMEASURED])


def test_plan_prints_the_interval_in_three_digits() -> None:
    text = " ".join(CliRunner().invoke(cli, [*LLAMA, "h100-sxm"]).stdout.split())
    data = json.loads(CliRunner().invoke(cli, [*LLAMA, "h100-sxm", "-o", "json"]).stdout)["expected"]
    low, high = data["tokensPerSecondPerGpuLow"], data["tokensPerSecondPerGpuHigh"]
    shown = f"({float(f'{low:.3g}'):,.0f} to {float(f'{high:.3g}'):,.0f})"
    assert f"{data['tokensPerSecondPerGpu']:,.0f} tokens/s {shown} and" in text
