"""The cluster through kubectl: its kubeconfig, contexts and ways to log in hold here too."""

import json
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any

import click
from megatron_contract.environment import CONTAINER_NAME

from megatron_operator.api.errors import FieldError, InvalidRecipeError
from megatron_operator.api.labels import GROUP, LABEL_RECIPE, LABEL_ROLE, PLURAL

Object = dict[str, Any]
RECIPES = f"{PLURAL}.{GROUP}"
TRAINER = "trainer"
"""Value of the role label on pods that train."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """Which cluster and namespace a command line asks about."""

    namespace: str | None
    context: str | None
    kubeconfig: str | None

    def recipe(self, name: str) -> Object:
        """The MegatronRecipe of this name. Raises InvalidRecipeError in the API server's words."""
        found: Object = self._json(["get", RECIPES, name], f"recipe {name}")
        return found

    def job(self, name: str) -> Object:
        """The PyTorchJob of this name. Raises InvalidRecipeError likewise."""
        found: Object = self._json(["get", "pytorchjobs.kubeflow.org", name], f"pytorchjob {name}")
        return found

    def events(self, name: str) -> list[Object]:
        """Events about the recipe."""
        about = f"involvedObject.kind=MegatronRecipe,involvedObject.name={name}"
        return self._items(["get", "events", "--field-selector", about], "events")

    def pods(self, name: str) -> list[Object]:
        """The recipe's pods that train, as they are now."""
        return self._items(["get", "pods", "--selector", trainers_of(name)], "pods")

    def logs(self, words: Sequence[str]) -> int:
        """Let kubectl print the trainer's log; its exit code."""
        command = [*self._kubectl(), "logs", "--container", CONTAINER_NAME, *words]
        try:
            return subprocess.run(command, check=False).returncode
        except KeyboardInterrupt:  # the end of --follow
            return 0

    def _items(self, words: Sequence[str], what: str) -> list[Object]:
        return list(self._json(words, what)["items"])

    def _json(self, words: Sequence[str], what: str) -> Any:
        done = subprocess.run(
            [*self._kubectl(), *words, "--output", "json"], capture_output=True, text=True, check=False
        )
        if done.returncode:
            lines = done.stderr.strip().splitlines() or [f"kubectl ended with {done.returncode}"]
            fix = "see kubectl get megatronrecipes --all-namespaces; choose with -n, --context, --kubeconfig"
            raise InvalidRecipeError([FieldError(what, lines[-1].removeprefix("Error from server "), fix)])
        return json.loads(done.stdout)

    def _kubectl(self) -> list[str]:
        binary = shutil.which("kubectl")
        if binary is None:
            raise InvalidRecipeError(
                [FieldError("kubectl", "is not on PATH", "install it, or add its folder to PATH")]
            )
        said = (("namespace", self.namespace), ("context", self.context), ("kubeconfig", self.kubeconfig))
        return [binary, *(f"--{option}={value}" for option, value in said if value)]


def trainers_of(name: str) -> str:
    """Label selector of a recipe's pods that train."""
    return f"{LABEL_RECIPE}={name},{LABEL_ROLE}={TRAINER}"


def asks_cluster(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add kubectl's options, and hand a Cluster to the command."""

    @click.option("-n", "--namespace", metavar="NAMESPACE", help="Namespace; default the context's.")
    @click.option("--context", metavar="NAME", help="Context of the kubeconfig.")
    @click.option("--kubeconfig", metavar="FILE", help="Default $KUBECONFIG, then ~/.kube/config.")
    @wraps(command)
    def wrapped(
        *args: Any, namespace: str | None, context: str | None, kubeconfig: str | None, **rest: Any
    ) -> Any:
        return command(*args, cluster=Cluster(namespace, context, kubeconfig), **rest)

    return wrapped


def complete_run(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Recipes of the context's namespace that begin so."""
    try:
        found = Cluster(None, None, None)._items(["get", RECIPES], "recipes")
    except InvalidRecipeError:
        return []
    names = [str(recipe["metadata"]["name"]) for recipe in found]
    return [name for name in names if name.startswith(incomplete)]
