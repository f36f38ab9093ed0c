"""How a recipe differs from the published one: `megatron diff` in a process of its own.

Recipes come from people who do not trust each other. As in the operator, nothing that depends on their values
is planned in the process that serves others; the command limits its own time and memory.
"""

import asyncio
import json
import sys
import time
from collections import OrderedDict
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from megatron_operator.cli.default_platform import DEFAULT_ACCELERATOR
from megatron_operator.lifecycle.status_reading import read_status
from megatron_operator.ui.planned_hardware import planned_hardware

Object = dict[str, Any]
SECONDS: Final = 30.0
"""Wall time after which the command is ended; a planning takes 6 s of processor time at most."""
MAX_REMEMBERED: Final = 64
"""Number of results that are kept."""
REMEMBERED: Final = 300.0
"""Seconds for which a result is shown again, at most."""
_MAIN: Final = "from megatron_operator.cli.main import main; main()"


@dataclass(frozen=True, slots=True)
class Difference:
    """Flags that differ from the published recipe's, or why there is nothing to compare."""

    flags: tuple[tuple[str, str | None, str | None], ...] = ()
    """Flag, value of the published recipe and of this one; None where it is not set."""
    problem: str | None = None
    hardware: str | None = None
    """For which accelerators both were planned, where neither recipe nor platform has that; a sentence."""


class PublishedRecipes:
    """Compares recipes, one at a time, and remembers the newest results."""

    def __init__(self, platform: Path | None, catalog: Path | None) -> None:
        """With a platform file and a directory of recipes, as `megatron diff` takes them."""
        self._has_platform = platform is not None
        self._options = [
            *(("--platform", str(platform)) if platform else ()),
            *(("--catalog", str(catalog)) if catalog else ()),
        ]
        self._lock = asyncio.Lock()
        self._known: OrderedDict[tuple[str, int, bool, float], Difference] = OrderedDict()

    async def difference(self, recipe: Object) -> Difference:
        """The difference of a recipe to the published one for the same accelerators."""
        metadata = recipe["metadata"]
        # Not for long: the platform and the catalog may change.
        plan = bool((recipe.get("status") or {}).get("plan"))
        edited = str(metadata.get("uid")), int(metadata.get("generation") or 0)
        key = *edited, plan, time.monotonic() // REMEMBERED
        async with self._lock:
            if key not in self._known:
                self._known[key] = await self._run(recipe)
                if len(self._known) > MAX_REMEMBERED:
                    self._known.popitem(last=False)
            return self._known[key]

    async def _run(self, recipe: Object) -> Difference:
        names = {name: recipe["metadata"][name] for name in ("name", "namespace")}
        spec, hardware = recipe.get("spec"), None
        if not self._has_platform:
            spec, hardware = _with_hardware(recipe)
        body = {key: recipe.get(key) for key in ("apiVersion", "kind")} | {"spec": spec, "metadata": names}
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-c", _MAIN, "diff", "-f", "-", "-o", "json", *self._options,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        try:
            async with asyncio.timeout(SECONDS):
                output, _ = await process.communicate(json.dumps(body).encode())
        except TimeoutError:
            process.kill()
            await process.wait()
            return Difference(problem=f"planning took more than {SECONDS:.0f} s")
        return replace(_read(output), hardware=hardware)


def _with_hardware(recipe: Object) -> tuple[Any, str | None]:
    """The spec, with the accelerator of the plan where it names none, and a sentence about that."""
    spec = recipe.get("spec")
    asked = spec.get("accelerator") if isinstance(spec, dict) else None
    if not isinstance(spec, dict) or not isinstance(asked, dict) or asked.get("type") is not None:
        return spec, None
    found = planned_hardware(read_status(recipe.get("status"))[0].plan)
    if found is None:
        return (
            spec,
            f"The recipe names no accelerator.type, and its plan has none: {DEFAULT_ACCELERATOR} is assumed.",
        )
    spec = spec | {"accelerator": asked | {"type": found}}
    return spec, f"The recipe names no accelerator.type: {found} has the memory and peak of the run's plan."


def _read(output: bytes) -> Difference:
    try:
        found = json.loads(output)
    except ValueError:
        return Difference(problem="megatron diff ended without a result")
    if errors := found.get("errors"):
        return Difference(problem="; ".join(f"{each['field']}: {each['message']}" for each in errors))
    return Difference(
        tuple((each["flag"], each["before"], each["after"]) for each in found.get("flags") or ())
    )
