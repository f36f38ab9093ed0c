"""How a recipe differs from the published one: `megatron diff` in a process of its own.

Recipes come from people who do not trust each other. As in the operator, nothing that depends on their values
is planned in the process that serves others; the command limits its own time and memory.
"""

import asyncio
import json
import sys
import time
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

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


class PublishedRecipes:
    """Compares recipes, one at a time, and remembers the newest results."""

    def __init__(self, platform: Path | None, catalog: Path | None) -> None:
        """With a platform file and a directory of recipes, as `megatron diff` takes them."""
        self._options = [
            *(("--platform", str(platform)) if platform else ()),
            *(("--catalog", str(catalog)) if catalog else ()),
        ]
        self._lock = asyncio.Lock()
        self._known: OrderedDict[tuple[str, int, float], Difference] = OrderedDict()

    async def difference(self, recipe: Object) -> Difference:
        """The difference of a recipe to the published one for the same accelerators."""
        metadata = recipe["metadata"]
        # Not for long: the platform and the catalog may change.
        key = str(metadata.get("uid")), int(metadata.get("generation") or 0), time.monotonic() // REMEMBERED
        async with self._lock:
            if key not in self._known:
                self._known[key] = await self._run(recipe)
                if len(self._known) > MAX_REMEMBERED:
                    self._known.popitem(last=False)
            return self._known[key]

    async def _run(self, recipe: Object) -> Difference:
        names = {name: recipe["metadata"][name] for name in ("name", "namespace")}
        body = {**{key: recipe.get(key) for key in ("apiVersion", "kind", "spec")}, "metadata": names}
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", _MAIN, "diff", "-f", "-", "-o", "json", *self._options,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        try:
            async with asyncio.timeout(SECONDS):
                output, _ = await process.communicate(yaml.safe_dump(body).encode())
        except TimeoutError:
            process.kill()
            await process.wait()
            return Difference(problem=f"planning took more than {SECONDS:.0f} s")
        return _read(output)


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
