"""`megatron reshard`: another layout for a run that has checkpoints, with its optimizer state."""

import json
import shlex
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from megatron_operator.api.conditions import Condition, Phase
from megatron_operator.cli import printing
from megatron_operator.cli.errors import CommandError
from megatron_operator.cli.inputs import CATALOG_DIRECTORY, Count, single_option
from megatron_operator.cli.kubectl import Kubectl, complete_run, kubectl_options

if TYPE_CHECKING:
    from megatron_operator.cli.layout_edits import LayoutEdits

Object = dict[str, Any]
POLL_SECONDS: Final = 2.0
FAILED_READS: Final = 30
"""Reads in a row that may fail while the command waits: a minute."""
_OPTIONS: Final = {
    "tensorModelParallelSize": "--tensor-model-parallel-size",
    "pipelineModelParallelSize": "--pipeline-model-parallel-size",
    "expertModelParallelSize": "--expert-model-parallel-size",
    "expertTensorParallelSize": "--expert-tensor-parallel-size",
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
    checkpoint, and sets the layout then; the run restarts twice. The first start is in its old layout, so the
    accelerators of that must be free once more. An interrupted command can be repeated.

    \b
    megatron reshard llama3-8b --tensor-model-parallel-size 2 --pipeline-model-parallel-size 4
    megatron reshard mixtral --expert-model-parallel-size 8 --gpus 128 --dry-run
    """
    from megatron_operator.cli.layout_edits import LayoutEdits
    from megatron_operator.cli.planning import load_catalog, load_platform
    from megatron_operator.lifecycle.desired import Config

    layout = {field: size for field, size in sizes.items() if size is not None}
    if not layout:
        raise click.UsageError("name the new layout, for example --tensor-model-parallel-size 2")
    if output != "table" and not dry_run:
        raise click.UsageError(f"-o {output} prints the edits of --dry-run; add it, or leave out -o")
    edits = LayoutEdits(kubectl.recipe(name), layout, gpus)
    planned = edits.plan(Config(load_platform(platform), load_catalog(catalog)))
    if output != "table":
        printing.print_data({"edits": edits.edits(), "plan": planned}, output)
    elif dry_run:
        _print_edits(edits, planned)
    else:
        _Resharding(kubectl, name, edits).run(planned)


def _print_edits(edits: "LayoutEdits", planned: str) -> None:
    listed = edits.edits()
    for number, edit in enumerate(listed, 1):
        if edits.must_save and number == len(listed):
            click.echo("# when the run has restarted and saved a checkpoint")
        click.echo(f"# edit {number} of {len(listed)}")
        click.echo("\n".join(_yaml({"spec": edit})))
    click.echo(f"# planned: {planned}")


def _yaml(content: Object) -> list[str]:
    from megatron_operator.api import yaml_documents

    return yaml_documents.dump(content).splitlines()


class _Resharding:
    """Makes the edits of one run, with a wait for a checkpoint in between."""

    def __init__(self, kubectl: Kubectl, name: str, edits: "LayoutEdits") -> None:
        self._kubectl, self._name, self._edits = kubectl, name, edits
        self._where = f"recipe {name}"
        self._shown = ""
        self._failed = 0

    def run(self, planned: str) -> None:
        """Change the layout. Raises CommandError."""
        try:
            if first := self._edits.first():
                self._kubectl.patch_recipe(self._name, {"spec": first})
                self._report("recovery.elastic is set; the run restarts, and saves for any layout then")
            if self._edits.must_save:
                self._await_checkpoint()
        except KeyboardInterrupt:
            raise CommandError(
                self._where, "has its layout still: the command was interrupted",
                "repeat it, and it goes on from here",
            ) from None  # fmt: skip
        self._kubectl.patch_recipe(self._name, {"spec": self._edits.last()})
        message = self._await_verdict()
        self._report("the layout is set; the run restarts from its newest checkpoint")
        self._report(message or planned)
        click.echo(
            "the recipe's file needs the same, or the next kubectl apply sets the earlier layout again:"
        )
        for line in _yaml({"spec": self._edits.result()}):
            click.echo(f"  {line}")

    def _report(self, text: str, *, err: bool = False) -> None:
        click.echo(f"{self._name}: {text}", err=err)

    def _await_checkpoint(self) -> None:
        """Wait until the run has saved its optimizer state for any layout. Raises CommandError."""
        from megatron_operator.cli.layout_edits import OVER, refusal
        from megatron_operator.cli.run_status import is_outdated

        while True:
            recipe = self._read()
            status = recipe.get("status") or {}
            phase = status.get("phase")
            ended = phase in (*OVER, Phase.FAILED, Phase.SUSPENDED) and not is_outdated(recipe)
            if ended or phase in OVER:
                raise CommandError(
                    self._where,
                    f"is {phase}, and has no checkpoint for another layout",
                    "see megatron status",
                )
            if not (recipe["spec"].get("recovery") or {}).get("elastic"):
                raise CommandError(
                    self._where, "has no recovery.elastic any more: somebody else removed it",
                    "add it to the recipe's file, then repeat this",
                )  # fmt: skip
            if refused := refusal(recipe):
                raise CommandError(self._where, f"is refused as it is: {refused}", "see megatron status")
            contract = (status.get("checkpoint") or {}).get("contract") or {}
            if contract.get("optimizerReshardable") == "true" and not is_outdated(recipe):
                return
            self._show("waits for the next checkpoint", recipe)
            time.sleep(POLL_SECONDS)

    def _await_verdict(self) -> str | None:
        """Wait until the operator has observed the layout; returns its message.

        Raises CommandError where it refuses, once the earlier layout is set again.
        """
        from megatron_operator.cli.layout_edits import planned
        from megatron_operator.cli.run_status import is_outdated

        try:
            while is_outdated(recipe := self._read()):
                self._show("waits for the operator", recipe)
                time.sleep(POLL_SECONDS)
        except (KeyboardInterrupt, CommandError) as interrupted:
            why = "the command was interrupted" if isinstance(interrupted, KeyboardInterrupt) else interrupted
            raise CommandError(
                self._where,
                f"has the new layout in its spec, and whether the operator takes it is not known: {why}",
                f"see megatron status; {self._how_to_undo()}",
            ) from None
        condition = planned(recipe)
        if condition.get("status") != "False":
            return condition.get("message")
        try:
            self._kubectl.patch_recipe(self._name, {"spec": self._edits.undo()})
        except CommandError as error:
            raise CommandError(
                self._where,
                f"is refused in the new layout ({condition.get('message')}), and undoing failed: {error}",
                self._how_to_undo(),
            ) from None
        raise CommandError(
            self._where, f"has its earlier layout again, in which it trains: {condition.get('message')}",
            "name another layout; --platform plans with the platform file of the cluster",
        )  # fmt: skip

    def _how_to_undo(self) -> str:
        edit = json.dumps({"spec": self._edits.undo()})
        words = ("patch", "megatronrecipe", self._name, "--type", "merge", "-p", edit)
        return f"the earlier layout: {shlex.join(['kubectl', *self._kubectl.options(), *words])}"

    def _read(self) -> Object:
        """The recipe. Raises CommandError once FAILED_READS in a row have failed."""
        while True:
            try:
                recipe = self._kubectl.recipe(self._name)
            except CommandError as error:
                self._failed += 1
                if self._failed >= FAILED_READS or "NotFound" in str(error):
                    raise
                time.sleep(POLL_SECONDS)
            else:
                self._failed = 0
                return recipe

    def _show(self, what: str, recipe: Object) -> None:
        """Print what is waited for, and where the run is, when that changes."""
        from megatron_operator.cli.run_status import is_outdated

        status = recipe.get("status") or {}
        now = f"{status.get('phase')}, iteration {(status.get('progress') or {}).get('iteration', 0):,}"
        if is_outdated(recipe):
            now = "the edit is not observed yet"
        for each in status.get("conditions") or []:
            if each["type"] == Condition.INTERNAL_ERROR and each["status"] == "True":
                now += f"; {each.get('message')}"
        if now != self._shown:
            self._report(f"{what} ({now})", err=True)
            self._shown = now
