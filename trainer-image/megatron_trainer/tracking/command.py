"""`python -m megatron_trainer.tracking.command TRACKER SAVE [ARGUMENT ...]`: one tracker of a run.

Standard input is the launcher's: a line with how the run ended, or its end if the launcher died.
"""

import os
import select
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from megatron_contract import environment as pod
from megatron_contract.tracking import Tracking

from megatron_trainer import engine
from megatron_trainer.secret_values import scrub
from megatron_trainer.settings import read_tracking
from megatron_trainer.tracking.event_file import EventFiles
from megatron_trainer.tracking.mlflow_server import MlflowServer
from megatron_trainer.tracking.tracker import Follower, Tracker
from megatron_trainer.tracking.wandb_run import Wandb

POSITION_DIR = "tracking"
"""In the run's save directory; one file for each tracker."""


def main(argv: Sequence[str]) -> int:
    """Record the run's scalars until it ends. Returns 0 if all of them are recorded."""
    name, save, *arguments = argv
    _yield_to_training()

    def log(text: str) -> None:
        print(scrub(f"megatron-train: {name}: {text}"), file=sys.stderr, flush=True)

    tracker = _tracker(name, read_tracking(), Path(save), _parameters(arguments), os.environ)
    position = Path(save) / POSITION_DIR / f"{name}.json"
    follower = Follower(tracker, Path(save) / pod.SCALARS_FILE, position, _wait_for_ending, log)
    complete = follower.follow()
    if not complete:
        log("the end of the curves is not recorded")
    return 0 if complete else 1


def _yield_to_training() -> None:
    """Run where the ranks leave time; where memory is short, be killed first if that spares the ranks."""
    os.nice(10)
    if not killed_together(Path("/sys/fs/cgroup")):
        with suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text("1000")


def killed_together(cgroup: Path) -> bool:
    """Whether the kernel's OOM killer ends all processes of the container with one of them.

    The kubelet sets this with cgroup v2, unless its singleProcessOOMKill is true.
    """
    try:
        return (cgroup / "memory.oom.group").read_text().strip() == "1"
    except OSError:
        return False


def _wait_for_ending(seconds: float) -> str | None:
    if not select.select([0], [], [], seconds)[0]:
        return None
    word = os.read(0, 100).decode().strip()
    if not word:
        # The launcher died: another one continues from the position that is saved.
        os._exit(1)
    return word


def _tracker(
    name: str, tracking: Tracking, save: Path, parameters: dict[str, str], environment: Mapping[str, str]
) -> Tracker:
    run_id = environment.get(pod.ENV_RUN_ID, pod.DEFAULT_RUN_ID)
    if name == "tensorboard":
        return EventFiles(save / pod.TENSORBOARD_DIR)
    if name == "wandb" and tracking.wandb is not None:
        return Wandb(tracking.wandb, run_id, save, parameters)
    if name == "mlflow" and tracking.mlflow is not None:
        return MlflowServer(tracking.mlflow, run_id, parameters)
    raise ValueError(f"{name} is not set in {pod.ENV_TRACKING}")


def _parameters(arguments: Sequence[str]) -> dict[str, str]:
    """The run's arguments as names and values: flags of Megatron, or `path=JSON` of Megatron-Bridge."""
    values: dict[str, list[str]] = {}
    name = "function"  # The first word of Megatron-Bridge.
    for word in arguments:
        if word.startswith("--"):
            name, _, value = word[2:].partition("=")
            values[name] = [value] if value else []
        elif engine.is_bridge() and "=" in word:
            path, _, value = word.partition("=")
            values[path] = [value]
        else:
            values.setdefault(name, []).append(word)
    return {name: " ".join(words) or "true" for name, words in values.items()}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
