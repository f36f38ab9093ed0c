"""The lines of `megatron status`, from a MegatronRecipe as the API server returns it."""

import textwrap
from collections.abc import Iterator
from typing import Any

import click

from megatron_operator.api.conditions import TRAINS, Phase
from megatron_operator.api.times import seconds
from megatron_operator.cli.attention import attention
from megatron_operator.cli.timeline import KINDS, format_duration, incident_cost

Object = dict[str, Any]
INTERVAL = 2.0
"""Seconds between two requests of --watch."""
_BAR = 24
_LABEL = 12
_COLORS = {
    Phase.TRAINING: "green",
    Phase.EVALUATING: "green",
    Phase.SUCCEEDED: "green",
    Phase.RECOVERING: "yellow",
    Phase.FAILED: "red",
    Phase.REFUSED: "red",
}
_PREPARING = (Phase.PREPARING, Phase.CHECKING)
_CONVERTING = {Phase.IMPORTING: "import", Phase.EXPORTING: "export"}
"""Phase -> label of its progress."""


def is_over(recipe: Object) -> bool:
    """Whether the run has ended, or does not start before somebody edits it."""
    return (recipe.get("status") or {}).get("phase") in (Phase.SUCCEEDED, Phase.FAILED, Phase.REFUSED)


def status_lines(recipe: Object, now: float, width: int | None) -> list[str]:
    """What a person reads first; `now` is in Unix seconds, `width` the columns of the output."""
    metadata, status = recipe["metadata"], recipe.get("status") or {}
    phase = status.get("phase")
    shown = click.style(phase, fg=_COLORS.get(phase), bold=True) if phase else "not reconciled yet"
    lines = [_line("run", f"{metadata['namespace']}/{metadata['name']}")]
    if phase and is_outdated(recipe):
        shown += " (the newest edit is not observed yet)"
    lines.append(_line("phase", shown))
    for label, text in (*_progress(status, now), *_incident(status, now), *attention(status)):
        lines += _wrapped(label, text, width)
    return lines


def is_outdated(recipe: Object) -> bool:
    """Whether the operator has not observed the newest edit of the spec yet."""
    observed = (recipe.get("status") or {}).get("observedGeneration")
    return isinstance(observed, int) and observed < recipe["metadata"].get("generation", observed)


def _line(label: str, text: str) -> str:
    return f"{label:<{_LABEL}}{text}"


def _wrapped(label: str, text: str, width: int | None) -> list[str]:
    paragraphs = text.splitlines() or [""]
    if width is not None:
        room = max(30, width - _LABEL)
        paragraphs = [part for line in paragraphs for part in textwrap.wrap(line, room) or [""]]
    return [_line("" if n else label, part).rstrip() for n, part in enumerate(paragraphs)]


def _progress(status: Object, now: float) -> Iterator[tuple[str, str]]:
    progress = status.get("progress") or {}
    iteration, total = progress.get("iteration"), progress.get("trainIters")
    if (preparation := status.get("preparation")) and status.get("phase") in _PREPARING:
        yield from _preparation(preparation, now, checks=status["phase"] == Phase.CHECKING)
    if (conversion := status.get("conversion")) and status.get("phase") in _CONVERTING:
        yield _CONVERTING[status["phase"]], _conversion(conversion)
    if iteration is not None:
        yield "progress", _bar(iteration, total)
    if progress.get("lmLoss") is not None:
        rate = progress.get("learningRate")
        yield (
            "loss",
            f"{progress['lmLoss']:.4g}" + (f", learning rate {rate:.3g}" if rate is not None else ""),
        )
    if validation := status.get("validation"):
        best = ""
        if validation.get("bestIteration") not in (None, validation["iteration"]):
            best = f", lowest {validation['bestLoss']:.4g} at {validation['bestIteration']:,}"
        yield "validation", f"loss {validation['loss']:.4g} at iteration {validation['iteration']:,}{best}"
    if speed := _speed(progress, status.get("plan") or {}):
        yield "speed", speed
    end = seconds(progress.get("eta"))
    if end is not None and status.get("phase") in TRAINS:
        yield (
            "end",
            f"{progress['eta'].replace('T', ' ').rstrip('Z')} UTC, in {format_duration(max(0.0, end - now))}",
        )
    yield from _converted(status)
    checkpoint = status.get("checkpoint") or {}
    if checkpoint.get("iteration") is not None:
        saved = seconds(checkpoint.get("time"))
        age = f", {format_duration(max(0.0, now - saved))} ago" if saved is not None else ""
        best = ""
        if (kept := checkpoint.get("bestIteration")) is not None:
            best = f"; best is {kept:,}, validation loss {checkpoint.get('bestLoss') or 0:.4g}"
        yield "checkpoint", f"iteration {checkpoint['iteration']:,}{age}{best}"


def _converted(status: Object) -> Iterator[tuple[str, str]]:
    for field, label in (("imported", "imported"), ("exported", "exported"), ("exportedBest", "best")):
        if found := status.get(field):
            at = f", iteration {found['iteration']:,}" if found.get("iteration") is not None else ""
            if found.get("validationLoss") is not None:
                at += f" with validation loss {found['validationLoss']:.4g}"
            audit = f", {found['tensors']:,} tensors audited" if found.get("tensors") else ""
            yield label, f"{found['path']}{at}{audit}"


def _preparation(preparation: Object, now: float, *, checks: bool) -> Iterator[tuple[str, str]]:
    done, total = (preparation[name] / (1 << 30) for name in ("bytesDone", "bytesTotal"))
    share = _share(done / total if total else 0.0)
    read = f"{share}, {done:,.1f} of {total:,.1f} GiB"
    if checks and not preparation["documents"]:  # a check of data that were prepared elsewhere
        yield "checked", read
    else:
        yield "prepared", f"{read}, {preparation['documents']:,} documents"
    if rate := preparation.get("bytesPerSecond"):
        end = seconds(preparation.get("eta"))
        left = f", done in {format_duration(max(0.0, end - now))}" if end is not None else ""
        yield "speed", f"{rate / (1 << 20):,.1f} MiB/s{left}"


def _conversion(conversion: Object) -> str:
    done, total = (conversion[name] / (1 << 30) for name in ("bytesDone", "bytesTotal"))
    if conversion["step"] == "download":
        return f"{_share(done / total if total else 0.0)}, {done:,.1f} of {total:,.1f} GiB downloaded"
    tensors = f"{conversion['tensorsDone']:,} of {conversion['tensorsTotal']:,} tensors"
    step = " of the audit" if conversion["step"] == "audit" else ""
    return f"{_share(done / total if total else 0.0)}, {done:,.1f} of {total:,.1f} GiB, {tensors}{step}"


def _share(share: float) -> str:
    filled = int(min(1.0, share) * _BAR)
    return f"{'█' * filled}{'░' * (_BAR - filled)} {min(1.0, share):.1%}"


def _bar(iteration: int, total: int | None) -> str:
    if not total:
        return f"iteration {iteration:,}"
    return f"{_share(iteration / total)}, {iteration:,} of {total:,} iterations"


def _speed(progress: Object, plan: Object) -> str:
    parts = []
    if progress.get("stepSeconds") is not None:
        parts.append(f"{progress['stepSeconds']:.3g} s per iteration")
    if progress.get("tokensPerSecond") is not None:
        rate = progress["tokensPerSecond"]
        gpus = plan.get("worldSize")
        each = f" ({rate / gpus:,.0f} per accelerator)" if gpus else ""
        parts.append(f"{rate:,.0f} tokens/s{each}")
    if progress.get("tflopsPerGpu") is not None:
        parts.append(f"{progress['tflopsPerGpu']:,.0f} TFLOP/s per accelerator")
    return ", ".join(parts)


def _incident(status: Object, now: float) -> Iterator[tuple[str, str]]:
    recovery = status.get("recovery") or {}
    if recovery.get("restarts"):
        goodput = recovery.get("goodput")
        yield (
            "restarts",
            f"{recovery['restarts']}" + (f", goodput {goodput:.1%}" if goodput is not None else ""),
        )
    incident = recovery.get("lastIncident")
    if incident:
        at = seconds(incident.get("time"))
        ago = f" {format_duration(max(0.0, now - at))} ago" if at is not None else ""
        kind = KINDS.get(incident["kind"], incident["kind"])
        yield (
            "incident",
            "\n".join(filter(None, (f"{kind}{ago}: {incident['cause']}", incident_cost(incident)))),
        )
    if elastic := recovery.get("elastic"):
        yield "resized", f"{elastic['count']} accelerators: {elastic['reason']}"
