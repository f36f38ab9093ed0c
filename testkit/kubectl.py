"""kubectl and helm, run as a user would type them."""

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from testkit.errors import CommandFailedError

ROOT = Path(__file__).resolve().parent.parent
"""The repository."""


def find_tool(name: str) -> str:
    """Path of `name`: the local cluster's own build, else the one on PATH.

    Raises CommandFailedError when there is neither.
    """
    built = ROOT / ".cluster" / "bin" / name
    found = str(built) if built.exists() else shutil.which(name)
    if found is None:
        raise CommandFailedError(
            f"{name} is neither in .cluster/bin nor on PATH; build it with `make cluster-up`"
        )
    return found


@dataclass(frozen=True)
class Kubectl:
    """kubectl and helm for one cluster and one namespace."""

    kubeconfig: Path
    namespace: str
    console: Console | None = None
    """Where commands that change something are printed; None prints nothing."""

    def run(self, *arguments: str, stdin: str | None = None, show: bool = False) -> str:
        """Standard output of `kubectl -n NAMESPACE ARGUMENTS`. Raises CommandFailedError."""
        if show:
            self._show("kubectl", arguments)
        return self._run([find_tool("kubectl"), "-n", self.namespace, *arguments], stdin)

    def helm(self, *arguments: str) -> str:
        """Standard output of `helm ARGUMENTS`; the command is printed. Raises CommandFailedError."""
        self._show("helm", arguments)
        return self._run([find_tool("helm"), *arguments], None)

    def get(self, kind: str, name: str) -> dict[str, Any] | None:
        """The object, or None where there is none. Raises CommandFailedError."""
        text = self.run("get", kind, name, "-o", "json", "--ignore-not-found")
        return json.loads(text) if text.strip() else None

    def select(self, kind: str, selector: str) -> list[dict[str, Any]]:
        """All objects of `kind` that match a label selector. Raises CommandFailedError."""
        items: list[dict[str, Any]] = json.loads(self.run("get", kind, "-l", selector, "-o", "json"))["items"]
        return items

    def apply(self, manifest: Mapping[str, Any]) -> None:
        """Apply one object. Raises CommandFailedError."""
        self.run("apply", "-f", "-", stdin=json.dumps(manifest))

    def create_namespace(self) -> None:
        """Create the namespace, unless it exists."""
        self.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.namespace}})

    def _show(self, program: str, arguments: tuple[str, ...]) -> None:
        if self.console is not None:
            self.console.print(Text(f"$ {program} {' '.join(arguments)}", style="bold"))

    def _run(self, command: list[str], stdin: str | None) -> str:
        environment = {**os.environ, "KUBECONFIG": str(self.kubeconfig)}
        done = subprocess.run(
            command, input=stdin, capture_output=True, text=True, env=environment, check=False, cwd=ROOT
        )
        if done.returncode != 0:
            shown = " ".join([Path(command[0]).name, *command[1:]])
            raise CommandFailedError(f"{shown}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout
