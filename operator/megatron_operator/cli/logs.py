"""`megatron logs`: the log of the pod that failed first."""

from dataclasses import asdict

import click

from megatron_operator.api.errors import FieldError, InvalidRecipeError
from megatron_operator.cli import output as printing
from megatron_operator.cli.cluster import Cluster, asks_cluster, complete_run, trainers_of

_AT_ONCE = 1000
"""Logs that kubectl may follow at the same time; its own limit is 5."""


@click.command("logs")
@click.argument("name", shell_complete=complete_run)
@click.option("-f", "--follow", is_flag=True, help="Go on with what is written from now on.")
@click.option("--rank", type=click.IntRange(min=0), metavar="R", help="The pod of this rank instead.")
@click.option("--all", "everyone", is_flag=True, help="All pods, each line with its pod's name.")
@click.option("--tail", type=click.IntRange(min=0), metavar="N", help="Only the last lines of each pod.")
@asks_cluster
@printing.formatted
def command(
    name: str,
    follow: bool,
    rank: int | None,
    everyone: bool,
    tail: int | None,
    cluster: Cluster,
    output: str,
) -> None:
    """Print the trainer's log of the pod that failed first, of the master where none did.

    The ranks of a pod write into one log. -o json says which pod it is, and why, instead of printing.

    \b
    megatron logs llama3-8b -n research
    megatron logs llama3-8b --rank 25 --tail 100
    megatron logs llama3-8b --all --follow
    """
    from megatron_operator.cli.culprit import first_failed, of_rank

    if everyone and rank is not None:
        raise click.UsageError("give either --rank R or --all")
    how = [*(["--follow"] if follow else []), f"--tail={-1 if tail is None else tail}"]
    if everyone and output == "table":
        cluster.recipe(name)
        words = ["--selector", trainers_of(name), "--prefix", f"--max-log-requests={_AT_ONCE}"]
        raise click.exceptions.Exit(cluster.logs([*words, *how]))
    recipe, pods = cluster.recipe(name), cluster.pods(name)
    found = first_failed(recipe, pods) if rank is None else of_rank(recipe, pods, rank)
    if found is None:
        phase = (recipe.get("status") or {}).get("phase") or "not looked at yet"
        missing = f"has no pod of rank {rank}" if pods else f"has no pods ({phase})"
        raise InvalidRecipeError([FieldError(f"recipe {name}", missing, f"see megatron history {name}")])
    if output != "table":
        printing.data(asdict(found), output)
        return
    where = f" on {found.node}" if found.node else ""
    click.secho(f"{found.pod}{where}: {found.why}", bold=True, err=True)
    previous = ["--previous"] if found.previous else []
    raise click.exceptions.Exit(cluster.logs([found.pod, *how, *previous]))
