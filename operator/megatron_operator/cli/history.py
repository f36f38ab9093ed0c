"""`megatron history`: evaluations of a run, and its incidents, Events and conditions in order of time."""

from typing import Any

import click

from megatron_operator.cli import printing
from megatron_operator.cli.kubectl import Kubectl, complete_run, kubectl_options


@click.command("history")
@click.argument("name", shell_complete=complete_run)
@kubectl_options
@printing.output_option
def command(name: str, kubectl: Kubectl, output: str) -> None:
    """Show validation losses of a run, its interruptions with cause and cost, Events, changes of conditions.

    Of more than 40 evaluations, some over the whole run are shown; validation.jsonl beside the checkpoints
    has all.

    \b
    megatron history llama3-8b -n research
    megatron history llama3-8b -o json | jq '.timeline[] | select(.source == "incident")'
    """
    from megatron_operator.cli.timeline import elapsed, incident_cost, timeline

    recipe = kubectl.recipe(name)
    entries = timeline(recipe, kubectl.events(recipe["metadata"]["uid"]))
    if output != "table":
        printing.print_data(_summary(recipe) | {"timeline": [entry.to_dict() for entry in entries]}, output)
        return
    for label, text in _lines(recipe):
        click.echo(f"{label:<12}{text}")
    click.echo()
    _print_evaluations(recipe)
    widest = max(len(entry.reason) for entry in entries)
    for entry in entries:
        padded = entry.reason.ljust(widest) if entry.message else entry.reason
        reason = click.style(padded, fg="yellow" if entry.warning else None)
        times = f" (x{entry.count})" if entry.count > 1 else ""
        time = entry.time[:19].replace("T", " ")
        first, *more = entry.message.splitlines() or [""]
        click.echo(f"{time}  {elapsed(entry, entries[0]):>7}  {reason}  {first}{times}".rstrip())
        if entry.incident is not None:
            more.append(incident_cost(entry.incident))
        for line in more:
            click.echo(f"{'':<{19 + 2 + 7 + 2 + widest + 2}}{line}".rstrip())


def _summary(recipe: dict[str, Any]) -> dict[str, Any]:
    """Totals of the run, under the field names of the status."""
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
        "evaluations": _evaluations(recipe),
        "lastCause": recovery.get("lastCause"),
    }


def _evaluations(recipe: dict[str, Any]) -> list[dict[str, Any]]:
    """Iteration and loss of each, oldest first, and whether it is the one with the lowest loss."""
    found = (recipe.get("status") or {}).get("validation") or {}
    best = found.get("bestIteration")
    return [each | {"best": each["iteration"] == best} for each in found.get("evaluations") or []]


def _print_evaluations(recipe: dict[str, Any]) -> None:
    rows = [
        [f"{each['iteration']:,}", f"{each['loss']:.5g}", "lowest" if each["best"] else ""]
        for each in _evaluations(recipe)
    ]
    if rows:
        printing.print_table(["ITERATION", "VALIDATION LOSS", ""], rows)
        click.echo()


def _lines(recipe: dict[str, Any]) -> list[tuple[str, str]]:
    from megatron_operator.cli.timeline import format_lost_time

    summary = _summary(recipe)
    run = f"{summary['namespace']}/{summary['name']}, {summary['phase'] or 'not reconciled yet'}"
    if summary["iteration"] is not None:
        length = f" of {summary['trainIters']:,}" if summary["trainIters"] else ""
        run += f", iteration {summary['iteration']:,}{length}"
    if summary["checkpointIteration"] is not None:
        run += f", checkpoint at {summary['checkpointIteration']:,}"
    kinds = ", ".join(f"{kind} {count}" for kind, count in summary["restartsByKind"].items() if count)
    lines = [("run", run), ("restarts", f"{summary['restarts']}{f' ({kinds})' if kinds else ''}")]
    if summary["restarts"] or kinds:
        lines.append(
            (
                "lost",
                f"{summary['lostIterations']:,} iterations; time: {format_lost_time(summary['lostSeconds'])}",
            )
        )
    if summary["goodput"] is not None:
        lines.append(("goodput", f"{summary['goodput']:.1%} of wall time since the first start"))
    if summary["nodesAvoided"]:
        lines.append(("avoided", ", ".join(summary["nodesAvoided"])))
    return lines
