"""The checks of `make gpu-check`: the trainer with one rank on a GPU of this machine."""

import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from tests.gpu.hardware.measurements import MEASUREMENTS
from tests.gpu.hardware.runs import DETERMINISTIC, ITERATIONS, SAVE_INTERVAL, Result, Runs, finish
from tests.trainer.gang import Gang, until

_KILLED_AT = (13, 22, 34)
_ACCOUNTING_ERROR = 0.01
_FREE_WITHIN = 1 << 30
"""Bytes: a context of CUDA is smaller, the model with its optimizer larger."""


def _losses(run: Gang) -> dict[int, set[float]]:
    return {iteration: set(losses) for iteration, losses in run.losses().items()}


def warm_start_and_first_step(runs: Runs) -> Result:
    """The rank is forked from a parent without a CUDA context, and trains."""
    started = time.time()
    run = runs.undisturbed()
    records = run.records()
    forked = "ranks start cold" not in run.log()
    return Result(
        forked and len(records) == ITERATIONS,
        {
            "ranks are forked": str(forked),
            "start to first step": f"{records[0]['time'] - started:.1f} s",
            "first step": f"{records[0]['stepSeconds']:.2f} s",
            "median step": f"{statistics.median(r['stepSeconds'] for r in records) * 1e3:.1f} ms",
        },
    )


def imports(runs: Runs) -> Result:
    """The imports of the fork server start no thread of the driver."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.gpu.hardware.imports"],
        env=os.environ | {"MEGATRON_PLATFORM": runs.device.platform},
        capture_output=True,
        text=True,
        check=True,
    )
    started_by = done.stdout.strip()
    return Result(not started_by, {"a thread of the driver is started by": started_by or "no import"})


def kill_and_restart(runs: Runs) -> Result:
    """A killed rank frees its memory, and the repeated iterations have equal losses."""
    expected = _losses(runs.undisturbed())
    before = runs.used_bytes()
    seconds, freed = [], []
    run = runs.new("killed")
    run.start(extra=("--train-iters", str(ITERATIONS), *DETERMINISTIC))
    for generation, iteration in enumerate(_KILLED_AT, start=1):
        run.await_iteration(iteration, generation)
        killed = time.time()
        run.kill_rank(0)
        until("its memory to be free", lambda: runs.used_bytes() <= before + _FREE_WITHIN or None)
        freed.append(time.time() - killed)
        run.await_iteration(1, generation + 1)
        first = next(r for r in run.records() if r["generation"] == generation + 1)
        seconds.append(first["time"] - killed)
    ended = run.wait()
    equal = _losses(run) == expected
    return Result(
        ended == [0] and equal,
        {
            "losses equal": str(equal),
            "kill to next step": ", ".join(f"{each:.1f} s" for each in seconds),
            "kill to free memory": ", ".join(f"{each:.2f} s" for each in freed),
        },
    )


def _recovered(run: Gang, runs: Runs) -> tuple[bool, dict[str, Any]]:
    """Whether a run with one incident ended well with equal losses; and the incident."""
    code = finish(run, *DETERMINISTIC)
    incidents = run.incidents()
    good = code == 0 and len(incidents) == 1 and _losses(run) == _losses(runs.undisturbed())
    return good and not run.survivors(), incidents[0] if incidents else {}


def wedged_kernel(runs: Runs) -> Result:
    """A kernel that never ends is a hang of its rank; the rank is killed and reaped."""
    run = runs.new("wedged", {"what": "wedge", "at": _KILLED_AT[0], "generations": [1]})
    run.environment["MEGATRON_HANG_TIMEOUT"] = "15"
    recovered, incident = _recovered(run, runs)
    named = (incident.get("kind"), incident.get("rank")) == ("hang", 0)
    return Result(recovered and named, {"cause": str(incident.get("cause"))})


def device_side_assert(runs: Runs) -> Result:
    """A device-side assert is software: no evidence against the node, no older checkpoint."""
    run = runs.new("assert", {"what": "assert", "at": _KILLED_AT[0], "generations": [1]})
    recovered, incident = _recovered(run, runs)
    software = run.termination(0)["evidence"] == "" and incident.get("resumedFrom") == SAVE_INTERVAL
    return Result(recovered and software, {"cause": str(incident.get("cause"))[:200]})


def writer_killed(runs: Runs) -> Result:
    """A killed writer of an asynchronous save costs a restart, not the run."""
    run = runs.new("writer")
    run.start(extra=("--train-iters", str(ITERATIONS), "--async-save", *DETERMINISTIC))
    run.await_iteration(SAVE_INTERVAL - 5)
    # Megatron raises the writer's nice value to 10, from wherever the rank's is.
    writers = [child for child in run.ranks(0)[0].children() if child.nice() == 10]
    for writer in writers:
        writer.kill()
    ended = run.wait()
    noticed = re.search(r"the checkpoint writer[^\n]*", run.log())
    equal = _losses(run) == _losses(runs.undisturbed())
    return Result(
        bool(writers) and noticed is not None and ended == [0] and equal,
        {"noticed": noticed[0] if noticed else "no", "losses equal": str(equal)},
    )


def step_time_accounting(runs: Runs) -> Result:
    """The seconds of the steps add up to the wall time between them, without saves."""
    run = runs.new("accounting")
    run.flags[run.flags.index("--save-interval") + 1] = "100000"
    code = finish(run)
    steps = run.records()[SAVE_INTERVAL:]
    wall = steps[-1]["time"] - steps[0]["time"]
    error = sum(step["stepSeconds"] for step in steps[1:]) / wall - 1
    return Result(code == 0 and abs(error) <= _ACCOUNTING_ERROR, {"steps against wall time": f"{error:+.2%}"})


CHECKS: dict[str, Callable[[Runs], Result]] = {
    "imports": imports,
    "warm start and first step": warm_start_and_first_step,
    "kill and restart, three times": kill_and_restart,
    "wedged kernel": wedged_kernel,
    "device-side assert": device_side_assert,
    "asynchronous writer killed": writer_killed,
    "step-time accounting": step_time_accounting,
    **MEASUREMENTS,
}
