"""`megatron diff`: what a recipe changes of Megatron's command line."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from megatron_contract.environment import CONTAINER_NAME

from megatron_operator.api.errors import FieldError, InvalidRecipeError
from megatron_operator.cli import output as printing
from megatron_operator.cli.cluster import Cluster, asks_cluster
from megatron_operator.cli.inputs import Question, question, resource

EXIT_DIFFERENT = 1

Flags = dict[str, str]


@click.command("diff")
@click.option(
    "--running",
    type=click.Path(path_type=Path, allow_dash=True),
    help="The running PyTorchJob, as `kubectl get pytorchjob NAME -o yaml` prints it; - is standard input.",
)
@click.option("--live", is_flag=True, help="The running PyTorchJob, asked of the cluster.")
@question
@asks_cluster
@printing.formatted
def command(asked: Question, running: Path | None, live: bool, cluster: Cluster, output: str) -> None:
    """Compare a recipe's command line with the catalog's for the same accelerators, or with a running job's.

    Ends with 0 when they are the same, with 1 when they differ.

    \b
    megatron diff -f recipe.yaml
    megatron diff -f recipe.yaml --live -n research
    kubectl get pytorchjob llama3-8b -o yaml | megatron diff -f recipe.yaml --running -
    """
    from megatron_operator.cli import documents
    from megatron_operator.cli.stages import run

    mine = resource(asked)
    one = run(asked, mine)
    if running is not None:
        before = flags(_arguments(documents.read(running), str(running)))
    elif live:
        from megatron_operator.manifests import object_name

        own_namespace = (mine.get("metadata") or {}).get("namespace")
        there = (
            cluster if cluster.namespace or not own_namespace else replace(cluster, namespace=own_namespace)
        )
        job = object_name(one.name)
        before = flags(_arguments(there.job(job), f"pytorchjob {job}"))
    else:
        if one.resolved.recipe is None:
            fix = "name a recipe, or give --live or --running"
            raise InvalidRecipeError(
                [FieldError("spec.recipe", "is missing: there is nothing to compare with", fix)]
            )
        spec = {
            name: mine["spec"][name] for name in ("recipe", "accelerator", "data") if name in mine["spec"]
        }
        published = run(asked, mine | {"spec": spec})
        before = flags(published.arguments)
    after = flags(one.arguments)
    changes = [
        {"flag": flag, "before": before.get(flag), "after": after.get(flag)}
        for flag in [*before, *(flag for flag in after if flag not in before)]
        if before.get(flag) != after.get(flag)
    ]
    if output != "table":
        printing.data(changes, output)
    else:
        for change in changes:
            _print("-", "red", change["flag"], change["before"])
            _print("+", "green", change["flag"], change["after"])
    if changes:
        raise click.exceptions.Exit(EXIT_DIFFERENT)


def _print(sign: str, colour: str, flag: str | None, value: str | None) -> None:
    if value is not None:
        click.secho(f"{sign} {flag} {value}".rstrip(), fg=colour)


def flags(words: list[str]) -> Flags:
    """Each flag with its values as one text; a bare switch has none."""
    found: dict[str, list[str]] = {}
    last: list[str] = []
    for word in words:
        if word.startswith("--"):
            last = found.setdefault(word, [])
        else:
            last.append(word)
    return {flag: " ".join(values) for flag, values in found.items()}


def _arguments(job: Any, where: str) -> list[str]:
    try:
        containers = job["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["containers"]
        return [str(word) for c in containers if c["name"] == CONTAINER_NAME for word in c["args"]]
    except (KeyError, TypeError):
        fix = "give the output of `kubectl get pytorchjob NAME -o yaml`"
        raise InvalidRecipeError([FieldError(where, "is no PyTorchJob of a recipe", fix)]) from None
