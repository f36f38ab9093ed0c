"""`megatron diff`: compares a recipe with the published one or with a running job."""

import contextlib
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from megatron_contract.bridge_run import BridgeRun
from megatron_contract.environment import CONTAINER_NAME

from megatron_operator.cli import printing
from megatron_operator.cli.diff_speed import compare, document, show
from megatron_operator.cli.errors import CommandError
from megatron_operator.cli.inputs import RecipeOptions, load_recipe, recipe_options
from megatron_operator.cli.kubectl import Kubectl, kubectl_options

if TYPE_CHECKING:
    from megatron_operator.planner import PlannedRun

EXIT_DIFFERENT = 1

Flags = dict[str, str]


@click.command("diff")
@click.option(
    "--running",
    type=click.Path(path_type=Path, allow_dash=True),
    help="The running job, as `kubectl get pytorchjob NAME -o yaml` prints it; - is standard input.",
)
@click.option("--live", is_flag=True, help="The running training job, read from the cluster.")
@recipe_options
@kubectl_options
@printing.output_option
def command(options: RecipeOptions, running: Path | None, live: bool, kubectl: Kubectl, output: str) -> None:
    """Compare a recipe with the published one for the same accelerators, or with a running job.

    Prints the flags that differ. Against the published recipe also what its function of Megatron-Bridge has
    and the plan has not, and the predicted speed of each step from the function to this recipe. Exits with 0
    when nothing differs, with 1 when something does.

    \b
    megatron diff -f recipe.yaml
    megatron diff --recipe deepseek_v3_pretrain_config --gpus 1024
    megatron diff -f recipe.yaml --live -n research
    kubectl get pytorchjob llama3-8b -o yaml | megatron diff -f recipe.yaml --running -
    """
    from megatron_operator.cli import documents
    from megatron_operator.cli.planning import plan_recipe

    recipe = load_recipe(options)
    planned = plan_recipe(options, recipe)
    speed, other = None, "the running job"
    if running is not None:
        before = flags(_arguments(documents.read_yaml(running), str(running)))
    elif live:
        before = flags(_live_arguments(kubectl, recipe, planned.name))
    else:
        if planned.resolved.recipe is None:
            fix = "name a recipe, or give --live or --running"
            raise CommandError("spec.recipe", "is required: without it there is nothing to compare with", fix)

        def plan_with(further: dict[str, Any]) -> "PlannedRun":
            return plan_recipe(options, recipe | {"spec": _identity(recipe["spec"]) | further})

        published = plan_with({})
        before = flags(published.arguments)
        how = "as published" if published.resolved.layout is not None else "as planned without settings"
        other = f"{published.resolved.recipe} {how}"
        speed = compare(recipe["spec"], published, planned, plan_with)
    changes = _changes(before, flags(planned.arguments))
    if output != "table":
        printing.print_data({"flags": changes} | document(speed), output)
    else:
        for change in changes:
            _print("-", "red", change["flag"], change["before"])
            _print("+", "green", change["flag"], change["after"])
        if speed is not None:
            show(speed)
        if not changes and (speed is None or speed.is_as_published):
            click.echo(f"no flag differs from {other}", err=True)
    if changes or (speed is not None and not speed.is_as_published):
        raise click.exceptions.Exit(EXIT_DIFFERENT)


def _identity(spec: dict[str, Any]) -> dict[str, Any]:
    """What makes another recipe of it: everything else is an override."""
    return {name: spec[name] for name in ("recipe", "accelerator", "data") if name in spec}


def _changes(before: Flags, after: Flags) -> list[dict[str, str | None]]:
    return [
        {"flag": flag, "before": before.get(flag), "after": after.get(flag)}
        for flag in [*before, *(flag for flag in after if flag not in before)]
        if before.get(flag) != after.get(flag)
    ]


def _print(sign: str, colour: str, flag: str | None, value: str | None) -> None:
    if value is not None:
        click.secho(f"{sign} {flag} {value}".rstrip(), fg=colour)


def flags(arguments: list[str]) -> Flags:
    """Each flag with its values in one string; a flag without a value has an empty one.

    Of a run of Megatron-Bridge the function, and each override by its path.
    """
    with contextlib.suppress(ValueError):
        run = BridgeRun.from_arguments(arguments)
        return {"function": run.function} | {path: json.dumps(run.overrides[path]) for path in run.overrides}
    found: dict[str, list[str]] = {}
    last: list[str] = []
    for argument in arguments:
        if argument.startswith("--"):
            flag, joined, value = argument.partition("=")
            last = found.setdefault(flag, [])
            last += [value] if joined else []
        else:
            last.append(argument)
    return {flag: " ".join(values) for flag, values in found.items()}


def _live_arguments(kubectl: Kubectl, recipe: dict[str, Any], name: str) -> list[str]:
    """Arguments of the job in the cluster; the recipe's own namespace is the default."""
    from megatron_operator.manifests import object_name
    from megatron_operator.manifests.job_backends import backend_of_kind

    namespace = kubectl.namespace or (recipe.get("metadata") or {}).get("namespace")
    live, job = replace(kubectl, namespace=namespace), object_name(name)
    recorded = (live.recipe(name).get("status") or {}).get("job") or {}
    backend = backend_of_kind(recorded.get("kind"))
    plural = backend.TEMPLATE_PLURAL or backend.PLURAL
    found = live.job(job, f"{plural}.{backend.GROUP}")
    return _arguments(found, f"{plural.removesuffix('s')} {job}")


def _arguments(job: Any, where: str) -> list[str]:
    from megatron_operator.manifests.job_backends import backend_of

    try:
        containers = backend_of(job).templates(job)[0]["spec"]["containers"]
        return [str(word) for c in containers if c["name"] == CONTAINER_NAME for word in c["args"]]
    except (AttributeError, IndexError, KeyError, TypeError):
        fix = "give the output of `kubectl get pytorchjob NAME -o yaml`, or that of jobset or trainingruntime"
        raise CommandError(where, "is not the training job of a recipe", fix) from None
