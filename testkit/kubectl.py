"""kubectl and helm, as a user would type them."""

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

ROOT = Path(__file__).resolve().parent.parent


class CommandFailed(Exception):
    """A command ended with an error; the text is what it said."""


def tool(name: str) -> str:
    """Path of `name`: the local cluster's own build, else the one on PATH.

    Raises CommandFailed when there is neither.
    """
    built = ROOT / ".cluster" / "bin" / name
    found = str(built) if built.exists() else shutil.which(name)
    if found is None:
        raise CommandFailed(f"{name} is neither in .cluster/bin nor on PATH; `make cluster-up` builds it")
    return found


@dataclass(frozen=True)
class Cluster:
    """One cluster and one namespace of it, reached with kubectl and helm."""

    kubeconfig: Path
    namespace: str
    console: Console | None = None
    """Where commands that change something are shown as a user would type them; none shows nothing."""

    def kubectl(self, *arguments: str, stdin: str | None = None, show: bool = False) -> str:
        """Standard output of `kubectl -n NAMESPACE ARGUMENTS`. Raises CommandFailed."""
        if show:
            self._show("kubectl", arguments)
        return self._run([tool("kubectl"), "-n", self.namespace, *arguments], stdin)

    def helm(self, *arguments: str) -> str:
        """Standard output of `helm ARGUMENTS`, shown. Raises CommandFailed."""
        self._show("helm", arguments)
        return self._run([tool("helm"), *arguments], None)

    def get(self, kind: str, name: str) -> dict[str, Any] | None:
        """The object, or none where there is no such object."""
        text = self.kubectl("get", kind, name, "-o", "json", "--ignore-not-found")
        return json.loads(text) if text.strip() else None

    def select(self, kind: str, selector: str) -> list[dict[str, Any]]:
        """All objects of `kind` with these labels."""
        items: list[dict[str, Any]] = json.loads(self.kubectl("get", kind, "-l", selector, "-o", "json"))[
            "items"
        ]
        return items

    def apply(self, manifest: Mapping[str, Any]) -> None:
        """Apply one object."""
        self.kubectl("apply", "-f", "-", stdin=json.dumps(manifest))

    def _show(self, program: str, arguments: tuple[str, ...]) -> None:
        if self.console is not None:
            self.console.print(Text(f"$ {program} {' '.join(arguments)}", style="bold"))

    def _run(self, command: list[str], stdin: str | None) -> str:
        environment = {**os.environ, "KUBECONFIG": str(self.kubeconfig)}
        done = subprocess.run(
            command, input=stdin, capture_output=True, text=True, env=environment, check=False, cwd=ROOT
        )
        if done.returncode != 0:
            shown = " ".join(Path(word).name if word == command[0] else word for word in command)
            raise CommandFailed(f"{shown}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout
