"""A run of Weights & Biases, by the package wandb, which is installed beside the trainer's packages.

Its own process uploads; what cannot be uploaded stays in its files on the checkpoint volume.
"""

import os
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from megatron_contract.environment import WANDB_DIR
from megatron_contract.tracking import WandbRun

from megatron_trainer.tracking.scalar_log import Position, Scalars
from megatron_trainer.tracking.tracker import TrackerError

PACKAGES: Final = Path(sys.prefix) / "tracking"
"""Where the image has wandb: Megatron imports it in every rank that can, which takes a second or two."""
CONNECT_SECONDS: Final = 60
_PRIVATE: Final[dict[str, object]] = {
    "host": "",
    "x_disable_meta": True,
    "x_disable_machine_info": True,
    "x_save_requirements": False,
}
"""Settings with which nothing about the node and what is installed is recorded; not every version has all."""


def is_installed() -> bool:
    """Whether this image has the package."""
    return (PACKAGES / "wandb").is_dir() or find_spec("wandb") is not None


class Wandb:
    """The run whose id is `run_id`; files go to the folder `wandb` in `save`."""

    rewrites = False
    settle_seconds = 60.0
    """wandb's own process writes its file in larger parts."""

    def __init__(self, run: WandbRun, run_id: str, save: Path, parameters: dict[str, str]) -> None:
        self._options = run
        self._run_id = run_id
        self._save = save
        self._parameters = parameters
        self._run: Any = None
        self.run = "/".join((run.entity or "", run.project, run_id))

    def open(self, position: Position) -> int | None:
        """Start or continue the run. The server knows its last iteration; offline the position does."""
        # wandb would send reports of its own errors.
        os.environ["WANDB_ERROR_REPORTING"] = "false"
        if PACKAGES.is_dir() and str(PACKAGES) not in sys.path:
            # First: what wandb needs is there in the versions that go with it.
            sys.path.insert(0, str(PACKAGES))
        wandb = import_module("wandb")

        (self._save / WANDB_DIR).mkdir(parents=True, exist_ok=True)
        options = self._options
        settings = wandb.Settings(
            console="off",
            silent=True,
            init_timeout=CONNECT_SECONDS,
            disable_code=True,
            disable_git=True,
            x_disable_stats=True,
        )
        for name, value in _PRIVATE.items():
            if hasattr(settings, name):
                setattr(settings, name, value)
        try:
            self._run = wandb.init(
                project=options.project,
                entity=options.entity,
                name=options.name,
                id=self._run_id,
                # An offline run cannot ask the server; uploading appends to the run of the same id.
                resume=None if options.offline else "allow",
                mode="offline" if options.offline else "online",
                dir=str(self._save),
                config=self._parameters,
                settings=settings,
            )
        except wandb.errors.Error as error:
            raise TrackerError(" ".join(str(error).split())[:300]) from error
        if options.offline:
            return None if position.run == self.run else -1
        return int(self._run.starting_step) - 1

    def rewind(self, iteration: int) -> None:
        """Never called: a step of a run cannot be replaced."""
        raise NotImplementedError(iteration)

    def write(self, scalars: list[Scalars]) -> None:
        """Give the values to wandb's own process; this does not wait for the network."""
        for each in scalars:
            self._run.log(each.values, step=each.iteration)

    def close(self, ending: str) -> None:
        """Upload the rest and end the run; one that was stopped counts as failed until it continues."""
        self._run.finish(exit_code=0 if ending == "finished" else 1)
