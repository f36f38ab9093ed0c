"""`megatron history`: what happened to a run."""

from typing import Any

import click

from megatron_operator.cli import output as printing
from megatron_operator.cli.cluster import Cluster, asks_cluster, complete_run


@click.command("history")
@click.argument("name", shell_complete=complete_run)
@asks_cluster
@printing.formatted
def command(name: str, cluster: Cluster, output: str) -> None:
    """Show what happened to a run: interruptions with their cause and cost, Events, turns of its conditions.

    \b
    megatron history llama3-8b -n research
    megatron history llama3-8b -o json | jq '.timeline[] | select(.source == "incident")'
    """
    from megatron_operator.cli.timeline import after, cost, timeline

    recipe = cluster.recipe(name)
    moments = timeline(recipe, cluster.events(name))
    if output != "table":
        printing.data(_summary(recipe) | {"timeline": [moment.document() for moment in moments]}, output)
        return
    for label, text in _lines(recipe):
        click.echo(f"{label:<12}{text}")
    click.echo()
    widest = max(len(moment.reason) for moment in moments)
    for moment in moments:
        padded = moment.reason.ljust(widest) if moment.message else moment.reason
        reason = click.style(padded, fg="yellow" if moment.warning else None)
        times = f" (x{moment.count})" if moment.count > 1 else ""
        time = moment.time[:19].replace("T", " ")
        first, *more = moment.message.splitlines() or [""]
        click.echo(f"{time}  {after(moment, moments[0]):>7}  {reason}  {first}{times}".rstrip())
        if moment.incident is not None:
            more.append(cost(moment.incident))
        for line in more:
            click.echo(f"{'':<{19 + 2 + 7 + 2 + widest + 2}}{line}".rstrip())


def _summary(recipe: dict[str, Any]) -> dict[str, Any]:
    """Field names are those of the status."""
    status, metadata = recipe.get("status") or {}, recipe["metadata"]
    recovery = status.get("recovery") or {}
    return {
        "name": metadata["name"],
        "namespace": metadata["namespace"],
        "phase": status.get("phase"),
        "iteration": (status.get("progress") or {}).get("iteration"),
        "trainIters": (status.get("progress") or {}).get("trainIters"),
        "checkpointIteration": (status.get("checkpoint") or {}).get("iteration"),
        "restarts": recovery.get("restarts", 0),
        "restartsByKind": recovery.get("restartsByKind") or {},
        "lostIterations": recovery.get("lostIterations", 0),
        "lostSeconds": recovery.get("lostSeconds") or {},
        "goodput": recovery.get("goodput"),
        "nodesAvoided": recovery.get("nodesAvoided") or [],
        "lastCause": recovery.get("lastCause"),
    }


def _lines(recipe: dict[str, Any]) -> list[tuple[str, str]]:
    from megatron_operator.cli.timeline import lost

    said = _summary(recipe)
    run = f"{said['namespace']}/{said['name']}, {said['phase'] or 'not looked at yet'}"
    if said["iteration"] is not None:
        length = f" of {said['trainIters']:,}" if said["trainIters"] else ""
        run += f", iteration {said['iteration']:,}{length}"
    if said["checkpointIteration"] is not None:
        run += f", checkpoint at {said['checkpointIteration']:,}"
    kinds = ", ".join(f"{kind} {count}" for kind, count in said["restartsByKind"].items() if count)
    lines = [("run", run), ("restarts", f"{said['restarts']}{f' ({kinds})' if kinds else ''}")]
    if said["restarts"] or kinds:
        lines.append(("lost", f"{said['lostIterations']:,} iterations; time: {lost(said['lostSeconds'])}"))
    if said["goodput"] is not None:
        lines.append(("goodput", f"{said['goodput']:.1%} of the time since the first start were kept steps"))
    if said["nodesAvoided"]:
        lines.append(("avoided", ", ".join(said["nodesAvoided"])))
    return lines
