"""The checks of `make gpu-check` that compare figures: with bare Megatron, with the plan, BF16 with FP8."""

import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from megatron_operator.catalog.discovery import PRODUCTS

from testkit.ports import free_port
from tests.gpu.hardware import megatron_log
from tests.gpu.hardware.megatron_log import Measured
from tests.gpu.hardware.runs import ITERATIONS, Result, Runs, library_environment
from tests.trainer.bridge_run import rendered_container

ROOT = Path(__file__).parents[3]
OBSERVER_SHARE = 0.005
BARE_SHARE = 0.99
FP8_LOSS_ERROR = 0.02
FP8_CAPABILITY = (8, 9)
MEMORY_ERROR = 0.05
_BARE_SECONDS = 180
_HOOKS = re.compile(r"megatron-train hooks: (\d+) steps, ([\d.]+) s")

# One device holds each of them with its optimizer: 24 GB are enough.
_DENSE = {"normalization": "RMSNorm", "swiglu": True, "disableBiasLinear": True, "vocabSize": 32000}
MODELS: dict[str, dict[str, Any]] = {
    "dense, 0.2e9 parameters": _DENSE
    | {"numLayers": 12, "hiddenSize": 1024, "ffnHiddenSize": 2816, "numAttentionHeads": 16},
    "dense, 0.5e9 parameters": _DENSE
    | {"numLayers": 12, "hiddenSize": 1792, "ffnHiddenSize": 4864, "numAttentionHeads": 14},
    "dense, 0.7e9 parameters": _DENSE
    | {"numLayers": 12, "hiddenSize": 2048, "ffnHiddenSize": 5632, "numAttentionHeads": 16},
    "8 experts, 0.5e9 parameters": _DENSE
    | {
        "numLayers": 8,
        "hiddenSize": 1024,
        "ffnHiddenSize": 2048,
        "numAttentionHeads": 16,
        "numExperts": 8,
        "moeRouterTopk": 2,
        "moeGroupedGemm": True,
    },
}
_SHORT_STEPS = {"seqLength": 1024, "microBatchSize": 2, "globalBatchSize": 8}
_LONG_STEPS = {"seqLength": 4096, "microBatchSize": 1, "globalBatchSize": 16}
"""The processor is never waited for, as with the models that users train."""
BATCHES = {"dense, 0.7e9 parameters": _LONG_STEPS}
"""Model -> lengths and sizes of its batches, where they are not _SHORT_STEPS."""


def trained(runs: Runs, name: str, *flags: str, hooks_timed: bool = False) -> tuple[Measured, str]:
    """Train under the launcher. Returns what Megatron printed of it, and the log.

    Raises AssertionError where the run does not end well, NoFiguresError.
    """
    run = runs.new(name, *([{"what": "time-hooks"}] if hooks_timed else []))
    run.flags[run.flags.index("--save-interval") + 1] = "100000"
    run.start(extra=("--train-iters", str(ITERATIONS), *megatron_log.flags(runs.device.platform), *flags))
    assert run.wait() == [0], run.log()[-1000:]
    return megatron_log.measure(run.log()), run.log()


def bare(runs: Runs, name: str) -> Measured:
    """Train with the same flags without the launcher. Raises CalledProcessError, NoFiguresError."""
    run = runs.new(name)
    flags = [
        *run.arguments(),
        *megatron_log.flags(runs.device.platform),
        "--save-interval",
        "100000",
        "--ckpt-format",
        "torch_dist",
    ]
    command = [sys.executable, "-m", "tests.gpu.hardware.bare", runs.device.platform, *flags]
    command += ["--train-iters", str(ITERATIONS)]
    environment = os.environ | run.environment
    environment |= {"MASTER_ADDR": "localhost", "MASTER_PORT": str(free_port())}
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=_BARE_SECONDS,
    )
    assert done.returncode == 0, done.stdout[-1000:]
    return megatron_log.measure(done.stdout)


def observer_cost(runs: Runs) -> Result:
    """The trainer's hooks after each step take less than OBSERVER_SHARE of it."""
    measured, log = trained(runs, "hooks", hooks_timed=True)
    return judge_observer(log, measured.step_seconds)


def judge_observer(log: str, step_seconds: float) -> Result:
    """`log` has the seconds of the hooks, which the run has measured itself."""
    found = _HOOKS.findall(log)
    if not found:
        return Result(False, {"error": "the run did not measure its hooks"})
    steps, seconds = found[-1]
    each = float(seconds) / int(steps)
    share = each / step_seconds
    figures = {"hooks per step": f"{each * 1e6:.0f} us", "of the step": f"{share:.3%}"}
    return Result(share < OBSERVER_SHARE, figures)


def against_bare(runs: Runs) -> Result:
    """Tokens per second of the trainer and of bare `pretrain()`, which runs before and after it."""
    before = bare(runs, "bare-before")
    measured, _ = trained(runs, "compared")
    return judge_bare(measured, [before, bare(runs, "bare-after")])


def judge_bare(measured: Measured, others: list[Measured]) -> Result:
    """Compare with the faster of the bare runs."""
    fastest = min(each.step_seconds for each in others)
    ratio = fastest / measured.step_seconds
    steps = ", ".join(f"{each.step_seconds * 1e3:.1f} ms" for each in others)
    figures = {
        "tokens/s against bare": f"{ratio:.3f}",
        "step": f"{measured.step_seconds * 1e3:.1f} ms",
        "bare steps": steps,
    }
    return Result(ratio >= BARE_SHARE, figures)


def precision(runs: Runs) -> Result:
    """BF16, and FP8 where the device has it."""
    bf16, _ = trained(runs, "bf16")
    if runs.device.capability < FP8_CAPABILITY:
        return judge_precision(bf16, None)
    flags = ("--fp8-format", "hybrid", "--fp8-recipe", "delayed", "--fp8-amax-compute-algo", "max")
    return judge_precision(bf16, trained(runs, "fp8", *flags)[0])


def judge_precision(bf16: Measured, fp8: Measured | None) -> Result:
    """All losses are finite, and FP8's last one is within FP8_LOSS_ERROR of BF16's."""
    figures = {"BF16 step": f"{bf16.step_seconds * 1e3:.1f} ms", "BF16 loss": f"{bf16.losses[-1]:.4f}"}
    good = all(map(math.isfinite, bf16.losses))
    if fp8 is None:
        return Result(good, figures | {"FP8": "not measured, the device has none"})
    error = fp8.losses[-1] / bf16.losses[-1] - 1
    figures |= {
        "FP8 step": f"{fp8.step_seconds * 1e3:.1f} ms",
        "FP8 loss": f"{fp8.losses[-1]:.4f} ({error:+.2%})",
    }
    return Result(good and all(map(math.isfinite, fp8.losses)) and abs(error) <= FP8_LOSS_ERROR, figures)


def recipe(name: str, hardware: str) -> dict[str, Any]:
    """Return a recipe that trains one of MODELS on one device."""
    return {
        "apiVersion": "megatron.training/v1beta1",
        "kind": "MegatronRecipe",
        "metadata": {"name": "planned"},
        "spec": {
            "model": dict(MODELS[name]),
            "accelerator": {"type": hardware, "count": 1},
            "data": {"mockData": True},
            "training": BATCHES.get(name, _SHORT_STEPS)
            | {"trainIters": ITERATIONS, "lr": 1e-4, "bf16": True},
            "megatronArgs": {"rerun-mode": "disabled"},
        },
    }


def ask_cli(command: str, manifest: Mapping[str, Any]) -> Any:
    """Return what `megatron plan` or `megatron args` answers to a recipe. Raises AssertionError."""
    program = Path(sys.executable).with_name("megatron")
    done = subprocess.run(
        [str(program), command, "-f", "-", "-o", "json"],
        input=json.dumps(manifest),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    return json.loads(done.stdout)


def hardware_of(product: str) -> str | None:
    """The planner's name of a device that NVML calls `product`, None where it does not know it."""
    return PRODUCTS.get(product.replace(" ", "-"))


def against_plan(name: str) -> Callable[[Runs], Result]:
    """Return the check that compares one of MODELS with its plan."""

    def check(runs: Runs) -> Result:
        hardware = hardware_of(runs.device.product)
        if hardware is None:
            return Result(False, {"error": f"not measured: the planner does not know {runs.device.product}"})
        manifest = recipe(name, hardware)
        plan, arguments = ask_cli("plan", manifest), ask_cli("args", manifest)
        run = runs.new(f"plan-{list(MODELS).index(name)}")
        run.flags = without(arguments, "--save", "--load", "--train-iters", "--mock-data", "--log-interval")
        run.flags[run.flags.index("--save-interval") + 1] = "100000"
        run.environment |= library_environment(rendered_container(manifest["spec"]))
        run.start(extra=("--train-iters", str(ITERATIONS), *megatron_log.flags(runs.device.platform)))
        assert run.wait() == [0], run.log()[-1000:]
        return judge_plan(plan, megatron_log.measure(run.log()))

    return check


def without(arguments: list[str], *flags: str) -> list[str]:
    """Return arguments without these flags and their values."""
    kept, dropping = [], False
    for word in arguments:
        if word.startswith("--"):
            dropping = word in flags
        if not dropping:
            kept.append(word)
    return kept


def judge_plan(plan: Mapping[str, Any], measured: Measured) -> Result:
    """Memory within MEMORY_ERROR above the plan's, and tokens per second within the plan's range."""
    planned, expected = plan["memoryPerGpu"]["total"], plan["expected"]
    low, high = expected["tokensPerSecondPerGpuLow"], expected["tokensPerSecondPerGpuHigh"]
    tokens = expected["tokensPerSecondPerGpu"] * expected["stepSeconds"] / measured.step_seconds
    used = measured.memory_bytes
    if used is None:
        return Result(False, {"error": "Megatron printed no memory of the device"})
    figures = {
        "memory": f"{used / 2**30:.2f} GiB, planned {planned / 2**30:.2f} GiB ({used / planned - 1:+.1%})",
        "step": f"{measured.step_seconds * 1e3:.1f} ms, planned {expected['stepSeconds'] * 1e3:.1f} ms",
        "tokens/s": f"{tokens:.0f}, planned {low:.0f} to {high:.0f}",
    }
    return Result(used <= planned * (1 + MEMORY_ERROR) and low <= tokens <= high, figures)


MEASUREMENTS: dict[str, Callable[[Runs], Result]] = {
    "observer's cost": observer_cost,
    "tokens/s against bare pretrain()": against_bare,
    "BF16 and FP8": precision,
    **{f"plan: {name}": against_plan(name) for name in MODELS},
}
