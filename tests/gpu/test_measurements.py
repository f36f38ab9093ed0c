"""The measurements of `make gpu-check`: when each fails, and their way through real runs, on the CPU."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.hardware import measurements
from tests.gpu.hardware.megatron_log import INTERVAL, Measured, NoFiguresError, measure
from tests.gpu.hardware.runs import ITERATIONS, Device, Runs

GIB = 2**30
TINY = """
    --num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 64 --max-position-embeddings 64
    --micro-batch-size 1 --global-batch-size 2 --lr 1e-3 --tokenizer-type NullTokenizer --vocab-size 255
    --split 99,1,0 --eval-interval 1000 --eval-iters 0 --position-embedding-type rope --rerun-mode disabled
    --use-distributed-optimizer --ckpt-format torch_dist
"""
ON_CPU = Device("cpu", "NVIDIA H100 80GB HBM3", (0, 0), tuple(TINY.split()))
PLAN: dict[str, Any] = {
    "memoryPerGpu": {"total": 10 * GIB},
    "expected": {
        "stepSeconds": 0.1,
        "tokensPerSecondPerGpu": 1000.0,
        "tokensPerSecondPerGpuLow": 900.0,
        "tokensPerSecondPerGpuHigh": 1100.0,
    },
}


def measured(
    seconds: float = 0.1, losses: tuple[float, ...] = (10.0, 9.0), gib: float | None = None
) -> Measured:
    return Measured(seconds, list(losses), None if gib is None else gib * GIB)


def line(milliseconds: float, loss: str, memory: str = "") -> str:
    time = f"elapsed time per iteration (ms): {milliseconds:.1f}"
    return f" iteration 5/ 40 | {time} | lm loss: {loss} |\n{memory}"


def test_the_first_lines_of_a_process_are_not_measured() -> None:
    memory = (
        "[Rank 0] (after 5 iterations) memory (MB) | reserved: 1.00 | total device memory used: 2048.00\n"
    )
    log = line(9000, "1.1E+01", memory) + line(900, "1.0E+01") + line(30, "9.5E+00") + line(20, "nan")
    found = measure(log + line(10, "9.0E+00"))
    assert (found.step_seconds, found.memory_bytes) == (0.02, 2 * GIB)
    assert found.losses[:3] == [11.0, 10.0, 9.5]
    assert math.isnan(found.losses[3])


def test_a_log_without_step_times_is_an_error_with_its_end() -> None:
    with pytest.raises(NoFiguresError, match=r"printed 0 step times: .*out of memory"):
        measure(line(9000, "1.1E+01") + "CUDA out of memory")


@pytest.mark.parametrize(("seconds", "passed"), [(0.0049, True), (0.0051, False)])
def test_hooks_that_take_half_a_percent_of_a_step_are_too_slow(seconds: float, passed: bool) -> None:
    log = (
        f"megatron-train hooks: 1 steps, 9.0 s\nmegatron-train hooks: 10 steps, {seconds * 10 * 0.1:.6f} s\n"
    )
    result = measurements.judge_observer(log, 0.1)
    assert result.passed == passed
    assert result.figures["of the step"] == f"{seconds:.3%}"


def test_hooks_that_nobody_measured_are_no_success() -> None:
    assert not measurements.judge_observer("", 0.1).passed


@pytest.mark.parametrize(("seconds", "passed"), [(0.1009, True), (0.1012, False)])
def test_more_than_a_hundredth_behind_the_faster_bare_run_fails(seconds: float, passed: bool) -> None:
    result = measurements.judge_bare(measured(seconds), [measured(0.1), measured(0.2)])
    assert result.passed == passed
    assert result.figures["bare steps"] == "100.0 ms, 200.0 ms"


@pytest.mark.parametrize(
    ("bf16", "fp8", "passed"),
    [
        (measured(losses=(10.0, 9.0)), measured(losses=(10.0, 9.1)), True),
        (measured(losses=(10.0, 9.0)), measured(losses=(10.0, 9.3)), False),
        (measured(losses=(10.0, 9.0)), measured(losses=(math.nan, 9.0)), False),
        (measured(losses=(math.inf, 9.0)), measured(losses=(10.0, 9.0)), False),
        (measured(losses=(10.0, 9.0)), None, True),
        (measured(losses=(math.nan, 9.0)), None, False),
    ],
)
def test_losses_of_both_precisions_are_finite_and_close(
    bf16: Measured, fp8: Measured | None, passed: bool
) -> None:
    result = measurements.judge_precision(bf16, fp8)
    assert result.passed == passed
    assert (fp8 is None) == (result.figures.get("FP8") == "not measured, the device has none")


@pytest.mark.parametrize(
    ("found", "passed"),
    [
        (measured(0.1, gib=10.4), True),
        (measured(0.1, gib=10.6), False),
        (measured(0.112, gib=9.0), False),
        (measured(0.09, gib=9.0), False),
        (measured(0.1, gib=None), False),
    ],
)
def test_more_memory_or_another_speed_than_planned_fails(found: Measured, passed: bool) -> None:
    assert measurements.judge_plan(PLAN, found).passed == passed


def test_a_device_that_the_planner_does_not_know_is_not_measured(tmp_path: Path) -> None:
    runs = Runs(tmp_path, lambda: 0, Device("gpu", "NVIDIA Titan", (9, 0)))
    (name, *_) = measurements.MODELS
    result = measurements.against_plan(name)(runs)
    assert not result.passed
    assert result.figures == {"error": "not measured: the planner does not know NVIDIA Titan"}


@pytest.mark.parametrize("name", measurements.MODELS)
def test_the_planned_models_fit_one_device_of_24_gb(name: str) -> None:
    hardware = measurements.hardware_of(ON_CPU.product)
    assert hardware == "h100-sxm"
    manifest = measurements.recipe(name, hardware)
    plan = measurements.ask_cli("plan", manifest)
    assert plan["runnable"]
    assert plan["worldSize"] == 1
    assert abs(plan["parameters"] / 1e9 - float(name.split()[-2][:3])) < 0.06
    assert plan["memoryPerGpu"]["total"] < 22 * GIB
    flags = measurements.without(measurements.ask_cli("args", manifest), "--save", "--load", "--mock-data")
    assert "--save-interval" in flags
    assert not {"--save", "--load", "--mock-data", "/checkpoints/planned"} & set(flags)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    """Runs on the CPU, whose figures are not judged."""
    made = Runs(tmp_path_factory.mktemp("m"), lambda: 0, ON_CPU)
    yield made
    made.close()


def test_hooks_and_bare_megatron_are_measured_in_real_runs(runs: Runs) -> None:
    cost = measurements.observer_cost(runs)
    bare = measurements.bare(runs, "bare")
    assert set(cost.figures) == {"hooks per step", "of the step"}
    assert bare.step_seconds > 0
    assert len(bare.losses) == 1 + ITERATIONS // INTERVAL, "the first iteration has a line of its own"
    assert bare.losses[-1] < bare.losses[0]


def test_a_run_that_fails_is_no_measurement(runs: Runs) -> None:
    with pytest.raises(AssertionError, match="Megatron refuses the flags"):
        measurements.trained(runs, "refused", "--tensor-model-parallel-size", "2")
