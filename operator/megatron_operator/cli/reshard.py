"""`megatron reshard`: another layout for a run that has checkpoints, with its optimizer state."""

import copy
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click

from megatron_operator.api.conditions import Condition, Phase
from megatron_operator.cli import printing
from megatron_operator.cli.errors import CommandError
from megatron_operator.cli.inputs import CATALOG_DIRECTORY, Count, RecipeOptions, single_option
from megatron_operator.cli.kubectl import Kubectl, complete_run, kubectl_options

POLL_SECONDS: Final = 2.0
_OPTIONS: Final = {
    "tensorModelParallelSize": "--tensor-model-parallel-size",
    "pipelineModelParallelSize": "--pipeline-model-parallel-size",
    "expertModelParallelSize": "--expert-model-parallel-size",
    "expertTensorParallelSize": "--expert-tensor-parallel-size",
}

_SAVES_NOTHING: Final = {
    Phase.SUCCEEDED: "start a new recipe in the new layout with init.from.recipe",
    Phase.SUSPENDED: "set suspend to false first",
}


def _size(name: str, text: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return single_option(_OPTIONS[name], name, type=Count(min=1), metavar="N", help=text)


@click.command("reshard")
@click.argument("name", shell_complete=complete_run)
@_size("tensorModelParallelSize", "Tensor parallelism.")
@_size("pipelineModelParallelSize", "Pipeline parallelism.")
@_size("expertModelParallelSize", "Expert parallelism.")
@_size("expertTensorParallelSize", "Tensor parallelism of the experts.")
@single_option("--gpus", type=Count(min=1), metavar="N", help="Number of accelerators; default unchanged.")
@single_option("--platform", type=click.Path(path_type=Path), help="Platform file of the cluster.")
@single_option("--catalog", type=CATALOG_DIRECTORY, help="Directory with additional recipes.")
@click.option("--dry-run", is_flag=True, help="Plan the layout and print the edits, without making them.")
@kubectl_options
@printing.output_option
def command(
    name: str,
    gpus: int | None,
    platform: Path | None,
    catalog: Path | None,
    dry_run: bool,
    kubectl: Kubectl,
    output: str,
    **sizes: int | None,
) -> None:
    """Change the layout of a run that has checkpoints; it goes on where it is, with its optimizer state.

    Megatron can only load the optimizer state in another layout if it was saved for that, as
    recovery.elastic does. For a run without it this command sets it, waits until the run has saved a
    checkpoint, and sets the layout then; the run restarts twice. An interrupted command can be repeated.

    \b
    megatron reshard llama3-8b --tensor-model-parallel-size 2 --pipeline-model-parallel-size 4
    megatron reshard mixtral --expert-model-parallel-size 8 --gpus 128 --dry-run
    """
    layout = {field: size for field, size in sizes.items() if size is not None}
    if not layout:
        raise click.UsageError("name the new layout, for example --tensor-model-parallel-size 2")
    steps = _Steps(kubectl.recipe(name), layout, gpus)
    planned = steps.plan(RecipeOptions(None, name, None, None, (), platform, catalog))
    if output != "table":
        _require_dry_run(dry_run, output)
        printing.print_data({"edits": steps.edits(), "plan": planned}, output)
        return
    if dry_run:
        for line in steps.lines():
            click.echo(line)
        return
    _make(steps, kubectl, name)


def _require_dry_run(dry_run: bool, output: str) -> None:
    if not dry_run:
        raise click.UsageError(f"-o {output} prints the edits of --dry-run; add it, or leave out -o")


class _Steps:
    """The edits of a recipe that lead to a layout. Raises CommandError where the run has ended."""

    def __init__(self, recipe: dict[str, Any], layout: dict[str, int], gpus: int | None) -> None:
        self.recipe = recipe
        spec, status = recipe["spec"], recipe.get("status") or {}
        self.name = str(recipe["metadata"]["name"])
        count = spec["accelerator"]["count"]
        self._gpus = gpus if gpus != count else None
        before = spec.get("parallelism") or {}
        self.layout = {field: size for field, size in layout.items() if before.get(field) != size}
        self._before = {field: before.get(field) for field in self.layout}
        self._count = count
        self._check(status.get("phase"))
        contract = (status.get("checkpoint") or {}).get("contract") or {}
        saved = contract.get("optimizerReshardable", "true") == "true"
        elastic = (spec.get("recovery") or {}).get("elastic")
        self.must_save = not saved
        self.elastic = {"minCount": count} if self.must_save and elastic is None else None
        self._min_count = (elastic or self.elastic or {}).get("minCount")

    def _check(self, phase: str | None) -> None:
        where = f"recipe {self.name}"
        if not self.layout and self._gpus is None:
            raise CommandError(where, "has this layout already", "see megatron status")
        if refused := refusal(self.recipe):
            raise CommandError(where, f"is refused as it is: {refused}", "correct it first")
        if phase in _SAVES_NOTHING:
            raise CommandError(where, f"is {phase}, so it saves nothing", _SAVES_NOTHING[Phase(phase)])

    def first(self) -> dict[str, Any] | None:
        """The edit after which the run saves its optimizer state for any layout, None if it does."""
        return {"recovery": {"elastic": self.elastic}} if self.elastic else None

    def last(self) -> dict[str, Any]:
        """The edit that sets the layout."""
        edit: dict[str, Any] = {"parallelism": self.layout} if self.layout else {}
        if self._gpus is not None:
            edit["accelerator"] = {"count": self._gpus}
            if self._min_count == self._count or (self._min_count or 0) > self._gpus:
                edit["recovery"] = {"elastic": {"minCount": self._gpus}}
        return edit

    def undo(self) -> dict[str, Any]:
        """The edit that sets the earlier layout again; null removes a field."""
        edit: dict[str, Any] = {"parallelism": self._before} if self.layout else {}
        if self._gpus is not None:
            edit["accelerator"] = {"count": self._count}
            if "recovery" in self.last():
                edit["recovery"] = {"elastic": {"minCount": self._min_count}}
        return edit

    def edits(self) -> list[dict[str, Any]]:
        """Both edits of `spec`, in their order."""
        return [edit for edit in (self.first(), self.last()) if edit]

    def plan(self, options: RecipeOptions) -> str:
        """The layout that is planned for the edited recipe. Raises InvalidRecipeError."""
        from megatron_operator.api.errors import InvalidRecipeError
        from megatron_operator.api.parallel_dims import ParallelDims
        from megatron_operator.cli.planning import plan_recipe, refusals

        edited = copy.deepcopy(self.recipe)
        for edit in self.edits():
            merge(edited["spec"], edit)
        planned = plan_recipe(options, edited)
        if refused := refusals(planned):
            raise InvalidRecipeError(refused)
        dims = ParallelDims.of_plan(planned.plan).describe(("tp", "pp", "cp", "ep", "dp"))
        return f"{dims} on {planned.plan.world_size} x {planned.resolved.accelerator_type}"

    def lines(self) -> list[str]:
        """The edits as a person reads them."""
        import yaml

        found = []
        for number, edit in enumerate(self.edits(), 1):
            found.append(f"# edit {number} of {len(self.edits())}")
            found += yaml.safe_dump({"spec": edit}, sort_keys=False).splitlines()
            if number < len(self.edits()):
                found.append("# then the run restarts and saves a checkpoint")
        return found


def merge(into: dict[str, Any], edit: dict[str, Any]) -> None:
    """Apply a JSON merge patch (RFC 7396) to an object."""
    for key, value in edit.items():
        if isinstance(value, dict):
            merge(into.setdefault(key, {}), value)
        elif value is None:
            into.pop(key, None)
        else:
            into[key] = value


def _make(steps: _Steps, kubectl: Kubectl, name: str) -> None:
    """Make the edits, with a wait for a checkpoint in between. Raises CommandError where one is refused."""
    try:
        if first := steps.first():
            click.echo(f"{name}: recovery.elastic is set; the run restarts, and saves for any layout then")
            kubectl.patch_recipe(name, {"spec": first})
        if steps.must_save:
            _await_checkpoint(kubectl, name)
    except KeyboardInterrupt:
        raise CommandError(
            f"recipe {name}", "has its layout still: the command was interrupted",
            "repeat it, and it goes on from here",
        ) from None  # fmt: skip
    kubectl.patch_recipe(name, {"spec": steps.last()})
    try:
        condition = _await_verdict(kubectl, name)
    except KeyboardInterrupt:
        condition = {}
    if condition.get("status") == "False":
        kubectl.patch_recipe(name, {"spec": steps.undo()})
        raise CommandError(
            f"recipe {name}", f"has its earlier layout again, in which it trains: {condition.get('message')}",
            "give the platform file of the cluster with --platform to plan as the operator does",
        )  # fmt: skip
    click.echo(f"{name}: the layout is set; the run restarts from its newest checkpoint")
    if message := condition.get("message"):
        click.echo(f"{name}: {message}")
    click.echo("the same edits belong into the recipe's file, or the next kubectl apply undoes them:")
    for line in steps.lines():
        click.echo(f"  {line}")


def _await_checkpoint(kubectl: Kubectl, name: str) -> None:
    """Wait until the run has saved its optimizer state for any layout. Raises CommandError."""
    from megatron_operator.cli.run_status import is_outdated

    shown = None
    while True:
        recipe = kubectl.recipe(name)
        status = recipe.get("status") or {}
        if refused := refusal(recipe):
            raise CommandError(
                f"recipe {name}", f"does not take recovery.elastic: {refused}", "see megatron status"
            )
        contract = (status.get("checkpoint") or {}).get("contract") or {}
        if contract.get("optimizerReshardable") == "true":
            return
        phase, progress = status.get("phase"), status.get("progress") or {}
        if phase in (*_SAVES_NOTHING, Phase.FAILED) and not is_outdated(recipe):
            raise CommandError(
                f"recipe {name}", f"is {phase} before it saved a checkpoint", "see megatron status"
            )
        now = f"{phase}, iteration {progress.get('iteration', 0):,}"
        if now != shown:
            click.echo(f"{name}: waits for the next checkpoint ({now})", err=True)
            shown = now
        time.sleep(POLL_SECONDS)


def _await_verdict(kubectl: Kubectl, name: str) -> dict[str, Any]:
    """The condition Planned of the newest edit."""
    from megatron_operator.cli.run_status import is_outdated

    while True:
        recipe = kubectl.recipe(name)
        if not is_outdated(recipe):
            return _condition(recipe)
        time.sleep(POLL_SECONDS)


def refusal(recipe: dict[str, Any]) -> str | None:
    """Why the operator refuses the newest edit, None where it does not or has not observed it yet."""
    from megatron_operator.cli.run_status import is_outdated

    condition = _condition(recipe)
    if condition.get("status") != "False" or is_outdated(recipe):
        return None
    return str(condition.get("message"))


def _condition(recipe: dict[str, Any]) -> dict[str, Any]:
    conditions = (recipe.get("status") or {}).get("conditions") or []
    return next((each for each in conditions if each["type"] == Condition.PLANNED), {})
