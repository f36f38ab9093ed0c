"""A fake kubectl that reads and patches the recipe of one run that trains, in a file."""

import json
import stat
import sys
from pathlib import Path
from typing import Any

from megatron_operator import catalog
from megatron_operator.cli.default_platform import default_platform
from megatron_operator.lifecycle.desired import Config, DesiredState, desired_state
from megatron_operator.lifecycle.status_builder import StatusBuilder

FAKE_KUBECTL = """#!{python}
import json, pathlib, sys
file = pathlib.Path({folder!r}) / "recipe.json"
for verb in ("get", "patch"):
    failing = file.parent / f"{{verb}}-fails"
    if verb in sys.argv and failing.exists():
        sys.exit(failing.read_text())
recipe = json.loads(file.read_text())
def merge(into, patch):
    for key, value in patch.items():
        if isinstance(value, dict):
            merge(into.setdefault(key, {{}}), value)
        elif value is None:
            into.pop(key, None)
        else:
            into[key] = value
if "patch" in sys.argv:
    patch = json.loads(sys.argv[sys.argv.index("--patch") + 1])
    with (file.parent / "patches").open("a") as patches:
        patches.write(json.dumps(patch["spec"]) + "\\n")
    merge(recipe, patch)
    recipe["metadata"]["generation"] += 1
    file.write_text(json.dumps(recipe))
print(json.dumps(recipe))
"""


RECIPE: dict[str, Any] = {
    "apiVersion": "megatron.training/v1beta1",
    "kind": "MegatronRecipe",
    "metadata": {"name": "run", "namespace": "research", "uid": "1", "generation": 1},
    "spec": {
        "recipe": "llama3-8b",
        "accelerator": {"type": "h100-sxm", "count": 16},
        "data": {"mockData": True},
        "parallelism": {"tensorModelParallelSize": 4},
    },
}


def as_planned(recipe: dict[str, Any]) -> DesiredState:
    return desired_state(StatusBuilder.of(recipe, 0.0), Config(default_platform(), catalog.load()))


class Cluster:
    """A recipe that trains, in a file which the fake kubectl reads and patches."""

    def __init__(self, folder: Path) -> None:
        program = folder / "kubectl"
        program.write_text(FAKE_KUBECTL.format(python=sys.executable, folder=str(folder)))
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        self._folder = folder
        self._file, self._patches = folder / "recipe.json", folder / "patches"
        self.begin(RECIPE["spec"])

    def begin(self, spec: dict[str, Any], reshardable: str = "false") -> None:
        """Let a run of this spec train, whose checkpoint has such an optimizer state."""
        recipe = RECIPE | {"spec": spec}
        desired = as_planned(recipe)
        status = {"phase": "Training", "observedGeneration": 1, "plan": desired.plan.wire()}
        status["checkpoint"] = {"iteration": 100, "contract": desired.contract}
        self.write(recipe | {"status": status})
        self.saved(reshardable)

    def read(self) -> dict[str, Any]:
        return dict(json.loads(self._file.read_text()))

    def write(self, recipe: dict[str, Any]) -> None:
        self._file.write_text(json.dumps(recipe))

    def saved(self, reshardable: str) -> None:
        """Observe the recipe, with a checkpoint of this kind."""
        recipe = self.read()
        recipe["status"]["checkpoint"]["contract"]["optimizerReshardable"] = reshardable
        recipe["status"]["observedGeneration"] = recipe["metadata"]["generation"]
        self.write(recipe)

    def status(self, **fields: Any) -> None:
        recipe = self.read()
        recipe["status"] |= fields
        self.write(recipe)

    def edit(self, **sections: Any) -> None:
        """What another user sets."""
        recipe = self.read()
        recipe["spec"] |= sections
        recipe["metadata"]["generation"] += 1
        self.write(recipe)

    def observe(self, planned: str = "True", message: str = "TP 2 x PP 4") -> None:
        condition = {"type": "Planned", "status": planned, "reason": "Planned", "message": message}
        self.status(observedGeneration=self.read()["metadata"]["generation"], conditions=[condition])

    def fail(self, verb: str, message: str | None) -> None:
        """Let kubectl fail with a message; None lets it succeed again."""
        failing = self._folder / f"{verb}-fails"
        if message is None:
            failing.unlink()
        else:
            failing.write_text(message)

    def patches(self) -> list[dict[str, Any]]:
        lines = self._patches.read_text().splitlines() if self._patches.exists() else []
        return [json.loads(line) for line in lines]
