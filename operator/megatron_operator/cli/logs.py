"""`megatron logs`: the log of the pod that failed first."""

from dataclasses import asdict

import click

from megatron_operator.cli import printing
from megatron_operator.cli.errors import CommandError
from megatron_operator.cli.kubectl import Kubectl, complete_run, kubectl_options, trainer_selector
from megatron_operator.cli.printing import EXIT_INVALID

_MAX_LOG_REQUESTS = 1000
"""Logs that kubectl may follow concurrently; its default is 5."""


@click.command("logs")
@click.argument("name", shell_complete=complete_run)
@click.option("-f", "--follow", is_flag=True, help="Follow the log.")
@click.option(
    "--rank", type=click.IntRange(min=0), metavar="R", help="Print the log of this rank's pod instead."
)
@click.option("--all", "all_pods", is_flag=True, help="Print all pods, with the pod's name in each line.")
@click.option(
    "--tail", type=click.IntRange(min=0), metavar="N", help="Print only the last N lines of each pod."
)
@kubectl_options
@printing.output_option
def command(
    name: str,
    follow: bool,
    rank: int | None,
    all_pods: bool,
    tail: int | None,
    kubectl: Kubectl,
    output: str,
) -> None:
    """Print the trainer's log of the pod that failed first, or of the master if none failed.

    All ranks of a pod write to one log. -o json prints the pod and the reason instead of the log.

    \b
    megatron logs llama3-8b -n research
    megatron logs llama3-8b --rank 25 --tail 100
    megatron logs llama3-8b --all --follow
    """
    from megatron_operator.cli.first_failure import first_failed_pod, pod_of_rank

    if all_pods and rank is not None:
        raise click.UsageError("give either --rank R or --all")
    flags = [*(["--follow"] if follow else []), f"--tail={-1 if tail is None else tail}"]
    if all_pods and output == "table":
        kubectl.recipe(name)
        selection = [
            "--selector",
            trainer_selector(name),
            "--prefix",
            f"--max-log-requests={_MAX_LOG_REQUESTS}",
        ]
        raise _ended(kubectl.logs([*selection, *flags]))
    recipe = kubectl.recipe(name)
    pods = kubectl.pods(recipe)
    found = first_failed_pod(recipe, pods) if rank is None else pod_of_rank(recipe, pods, rank)
    if found is None:
        phase = (recipe.get("status") or {}).get("phase") or "not reconciled yet"
        missing = f"has no pod of rank {rank}" if pods else f"has no pods ({phase})"
        raise CommandError(f"recipe {name}", missing, f"see megatron history {name}")
    if output != "table":
        printing.print_data(asdict(found), output)
        return
    where = f" on {found.node}" if found.node else ""
    click.secho(f"{found.pod}{where}: {found.why}", bold=True, err=True)
    previous = ["--previous"] if found.previous else []
    raise _ended(kubectl.logs([found.pod, *flags, *previous]))


def _ended(code: int) -> click.exceptions.Exit:
    """The end of this command where `kubectl logs` ended with `code`."""
    return click.exceptions.Exit(EXIT_INVALID if code else 0)
