"""kubectl, for commands that use the cluster: its kubeconfig, contexts and credentials apply here too."""

import json
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import click
from megatron_contract.environment import CONTAINER_NAME

from megatron_operator.api import json_documents
from megatron_operator.api.labels import GROUP, LABEL_RECIPE, LABEL_ROLE, PLURAL
from megatron_operator.api.times import seconds
from megatron_operator.cli.errors import CommandError

Object = dict[str, Any]
RECIPES = f"{PLURAL}.{GROUP}"
TRAINER = "trainer"
"""Value of the role label on trainer pods."""
_CHOOSE_CLUSTER = "see kubectl cluster-info; choose the cluster with --context or --kubeconfig"
_CHOOSE_RECIPE = "see kubectl get megatronrecipes --all-namespaces; choose with -n, --context, --kubeconfig"
_UNREACHABLE = ("The connection to the server", "Unable to connect to the server")
"""Parts of kubectl's messages where no API server answers."""
_NO_CONTEXT = "current-context must exist"
"""Part of kubectl's message where there is no kubeconfig, as in a pod."""
_NAMESPACE_OF_POD = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


@dataclass(frozen=True, slots=True)
class Kubectl:
    """kubectl with the namespace, context and kubeconfig of a command line; None leaves kubectl's default."""

    namespace: str | None
    context: str | None
    kubeconfig: str | None

    def recipe(self, name: str) -> Object:
        """The MegatronRecipe of this name. Raises CommandError with the API server's message."""
        found: Object = self._json(["get", RECIPES, name], f"recipe {name}")
        return found

    def patch_recipe(self, name: str, patch: Object) -> None:
        """Apply a JSON merge patch to a MegatronRecipe. Raises CommandError with the API server's message."""
        words = ["patch", RECIPES, name, "--type=merge", "--patch", json.dumps(patch)]
        try:
            self._run(words, f"recipe {name}", whole_message=True)
        except CommandError as error:
            message = error.errors[0].message
            if message.startswith("(Forbidden)"):
                fix = f"ask for the right to patch {PLURAL}: kubectl auth can-i patch {PLURAL}"
                raise CommandError(f"recipe {name}", message, fix) from None
            raise

    def recipes(self, *, all_namespaces: bool = False) -> list[Object]:
        """All MegatronRecipes of the namespace, or of all. Raises CommandError."""
        return self._items(["get", RECIPES, *(["--all-namespaces"] if all_namespaces else [])], "recipes")

    def job(self, name: str, resource: str) -> Object:
        """The training job of this name; `resource` as in `pytorchjobs.kubeflow.org`.

        Raises CommandError with the API server's message.
        """
        found: Object = self._json(["get", resource, name], f"{resource.partition('s.')[0]} {name}")
        return found

    def events(self, uid: str) -> list[Object]:
        """Events of the object with this UID, not of an earlier one of its name. Raises CommandError."""
        selector = f"involvedObject.uid={uid}"
        return self._items(["get", "events", "--field-selector", selector], "events")

    def pods(self, recipe: Object) -> list[Object]:
        """The recipe's trainer pods. Raises CommandError."""
        selector = trainer_selector(recipe["metadata"]["name"])
        return own_pods(recipe, self._items(["get", "pods", "--selector", selector], "pods"))

    def version(self) -> Object:
        """`kubectl version`, with the API server's. Raises CommandError if it cannot be reached."""
        try:
            found: Object = self._json(["version"], "kubectl version")
        except CommandError as error:
            raise CommandError("kubectl version", error.errors[0].message, _CHOOSE_CLUSTER) from None
        return found

    def options(self) -> list[str]:
        """The options of kubectl that choose this cluster and namespace."""
        flags = (("namespace", self.namespace), ("context", self.context), ("kubeconfig", self.kubeconfig))
        return [f"--{flag}={value}" for flag, value in flags if value]

    def current_namespace(self) -> str:
        """The namespace of the context, else that of this pod, else `default`, as in kubectl.

        Raises CommandError.
        """
        try:
            view: Object = self._json(["config", "view", "--minify"], "kubectl config")
        except CommandError as error:
            if _NO_CONTEXT not in str(error):
                raise
            return _NAMESPACE_OF_POD.read_text().strip() if _NAMESPACE_OF_POD.exists() else "default"
        contexts = view.get("contexts") or [{}]
        return str((contexts[0].get("context") or {}).get("namespace") or "default")

    def find(self, words: Sequence[str]) -> list[Object]:
        """Objects of `kubectl get WORDS`, without those that do not exist. Raises CommandError."""
        found = self._json(["get", *words, "--ignore-not-found"], f"kubectl get {words[0]}", nothing={})
        return list(found["items"]) if "items" in found else [found] if found else []

    def logs(self, arguments: Sequence[str]) -> int:
        """Run `kubectl logs` on the trainer container, with its output on ours; returns its exit code.

        Raises CommandError without kubectl.
        """
        command = [*self._command(), "logs", "--container", CONTAINER_NAME, *arguments]
        try:
            return subprocess.run(command, check=False).returncode
        except KeyboardInterrupt:  # the usual end of --follow
            return 0

    def log_text(self, arguments: Sequence[str]) -> str:
        """What `kubectl logs` prints. Raises CommandError."""
        return self._run(["logs", *arguments], "kubectl logs")

    def _items(self, arguments: Sequence[str], what: str) -> list[Object]:
        return list(self._json(arguments, what)["items"])

    def _json(self, arguments: Sequence[str], what: str, nothing: Any = None) -> Any:
        printed = self._run([*arguments, "--output", "json"], what)
        return json_documents.loads(printed) if nothing is None or printed.strip() else nothing

    def _run(self, arguments: Sequence[str], what: str, *, whole_message: bool = False) -> str:
        """What kubectl prints. Raises CommandError with the last line of its errors, or with all of them."""
        done = subprocess.run(
            [*self._command(), *arguments], capture_output=True, text=True, errors="replace", check=False
        )
        if done.returncode:
            lines = done.stderr.strip().splitlines() or [f"kubectl exited with {done.returncode}"]
            unreachable = any(text in lines[-1] for text in _UNREACHABLE)
            message = " ".join(lines) if whole_message else lines[-1]
            raise CommandError(
                what,
                message.removeprefix("Error from server "),
                _CHOOSE_CLUSTER if unreachable else _CHOOSE_RECIPE,
            )
        return done.stdout

    def _command(self) -> list[str]:
        binary = shutil.which("kubectl")
        if binary is None:
            raise CommandError("kubectl", "not found on PATH", "install it, or add its folder to PATH")
        return [binary, *self.options()]


def trainer_selector(name: str) -> str:
    """Label selector of the trainer pods of a recipe, and of one of its name that was deleted."""
    return f"{LABEL_RECIPE}={name},{LABEL_ROLE}={TRAINER}"


def own_pods(recipe: Object, pods: Sequence[Object]) -> list[Object]:
    """Those of these pods that are not older than the recipe, as those of a deleted one of its name are."""
    created = seconds(recipe["metadata"].get("creationTimestamp")) or 0.0
    return [pod for pod in pods if (seconds(pod["metadata"].get("creationTimestamp")) or created) >= created]


def kubectl_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add kubectl's options to a command, and pass it a Kubectl as `kubectl`."""

    @click.option("-n", "--namespace", metavar="NAMESPACE", help="Namespace; default the context's.")
    @click.option("--context", metavar="NAME", help="Context of the kubeconfig.")
    @click.option("--kubeconfig", metavar="FILE", help="Default $KUBECONFIG, then ~/.kube/config.")
    @wraps(command)
    def wrapped(
        *args: Any, namespace: str | None, context: str | None, kubeconfig: str | None, **rest: Any
    ) -> Any:
        return command(*args, kubectl=Kubectl(namespace, context, kubeconfig), **rest)

    return wrapped


def complete_run(context: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Names of recipes that start with `incomplete`, in the namespace and cluster of the words before."""
    given = context.params
    try:
        found = Kubectl(given.get("namespace"), given.get("context"), given.get("kubeconfig")).recipes()
    except CommandError:
        return []
    names = [str(recipe["metadata"]["name"]) for recipe in found]
    return [name for name in names if name.startswith(incomplete)]
