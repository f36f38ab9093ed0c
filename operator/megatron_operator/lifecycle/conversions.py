"""The conversions of a run: what import and export Jobs read and write, and what the status has of them."""

from collections.abc import Iterable, Sequence
from itertools import pairwise

from megatron_contract.conversion import ConversionResult
from megatron_contract.wire import WireError, load_json

from megatron_operator.api.status import ConversionStatus
from megatron_operator.catalog.resolved import ResolvedRecipe
from megatron_operator.lifecycle.object_metadata import Object
from megatron_operator.lifecycle.pod_termination import container_message
from megatron_operator.lifecycle.stages import CONVERSIONS, EXPORT, EXPORT_BEST, IMPORT, Stage, arguments_of
from megatron_operator.lifecycle.status_builder import StatusBuilder
from megatron_operator.manifests import convert


def conversion_of(stage: Stage, resolved: ResolvedRecipe, name: str) -> ConversionStatus | None:
    """What a conversion of the recipe `name` reads and writes; None for a run without it."""
    if stage is IMPORT:
        source = resolved.init.source
        if source is None or source.hugging_face is None:
            return None
        found = _conversion(source.hugging_face.folder, source.checkpoint)
        return found.model_copy(update={"model": convert.model_hash(resolved)})
    target = resolved.export.folder("end" if stage is EXPORT else "best") if resolved.export else None
    if target is None:
        return None
    found = _conversion(convert.folder_of_run(name), target)
    return found.model_copy(update={"base": convert.export_base(resolved)})


def accepted_exports(status: StatusBuilder) -> list[Stage]:
    """The exports of the spec that the run follows; none where they are not known."""
    accepted = status.current.accepted
    asked = (accepted.exports if accepted is not None else None) or []
    return [stage for stage, moment in ((EXPORT, "end"), (EXPORT_BEST, "best")) if moment in asked]


def conversion_by(job: Object) -> ConversionStatus:
    """What the Job of an export reads and writes, by the arguments that it was created with."""
    words = [str(word).replace("$$(", "$(") for word in arguments_of(job)]
    values = dict(pairwise(words[: words.index("--")] if "--" in words else words))
    return _conversion(values["--from"], values["--to"]).model_copy(update={"base": values.get("--base")})


def is_converted(status: StatusBuilder, stage: Stage, wanted: ConversionStatus) -> bool:
    """Whether this conversion is complete, so that no Job is needed.

    Until the run has saved its model, an import is repeated for another one: config.json may not describe it.
    The base of an export that an earlier release made is not known, and counts as the same.
    """
    known: ConversionStatus | None = getattr(status.current, CONVERSIONS[stage])
    if known is None or (known.source, known.path) != (wanted.source, wanted.path):
        return False
    if known.base not in (None, wanted.base):
        return False
    return known.model == wanted.model or status.checkpoint.iteration is not None


def set_converted(
    status: StatusBuilder, stage: Stage, wanted: ConversionStatus, pods: Iterable[Object]
) -> None:
    """Report a complete conversion, with what its pod reports of it, if it is still there."""
    result = next((found for pod in pods if (found := _result(pod))), None)
    if result is not None:
        loss = result.validation_loss
        known = {
            "tensors": result.tensors,
            "bytes": result.bytes,
            "iteration": result.iteration,
            "revision": result.revision,
            "validation_loss": None if loss is None else float(f"{loss:.5g}"),
        }
        wanted = wanted.model_copy(update=known)
    status.set(**{CONVERSIONS[stage]: wanted}, conversion=None)
    status.add_event(stage.complete, _converted_text(status, stage))


def set_all_converted(status: StatusBuilder, stages: Sequence[Stage]) -> None:
    """Set the condition that `stages` share: all of them are complete."""
    text = "; ".join(_converted_text(status, stage) for stage in stages)
    status.set_condition(stages[0].condition, True, stages[0].complete, text)


def _converted_text(status: StatusBuilder, stage: Stage) -> str:
    """What a complete conversion has written, as the status holds it."""
    done: ConversionStatus = getattr(status.current, CONVERSIONS[stage])
    compared = ""
    if done.tensors is not None and done.bytes is not None:
        compared = f": {done.tensors:,} tensors, {done.bytes:,} bytes, audit passed"
    return f"{done.path}{_checkpoint_text(status, done) if stage is EXPORT_BEST else ''}{compared}"


def _checkpoint_text(status: StatusBuilder, done: ConversionStatus) -> str:
    """Which checkpoint is the best."""
    text = " has the best checkpoint"
    if done.iteration is not None:
        loss = "" if done.validation_loss is None else f", validation loss {done.validation_loss:g}"
        text += f", of iteration {done.iteration:,}{loss}"
    end = status.current.exported
    if end is not None and end.iteration is not None and end.iteration == done.iteration:
        text += f", which is the last one, in {end.path}, too"
    return text


def _conversion(source: str, path: str) -> ConversionStatus:
    return ConversionStatus(source=source, path=path, audit=f"{path}/{convert.AUDIT_FILE}")


def _result(pod: Object) -> ConversionResult | None:
    try:
        return ConversionResult.from_json(load_json(container_message(pod, convert.CONTAINER)))
    except WireError:
        return None
