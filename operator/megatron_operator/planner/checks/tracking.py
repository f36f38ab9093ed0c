"""Checks of `tracking`: trackers that have no effect, or lack their credentials."""

from collections.abc import Iterator
from typing import Final

from megatron_operator.api.errors import FieldError, field_path
from megatron_operator.api.tracking import MLFLOW_TOKEN, WANDB_KEY
from megatron_operator.catalog.resolved import ResolvedRecipe

_FLAGS: Final = (
    "disable-log-loss-scale-to-tensorboard",
    "log-memory-to-tensorboard",
    "log-timers-to-tensorboard",
    "log-validation-ppl-to-tensorboard",
    "log-world-size-to-tensorboard",
    "no-log-loss-scale-to-tensorboard",
    "tensorboard-log-interval",
)
"""Flags that choose what Megatron gives to a tracker; their names are older than other trackers."""


def tracking_errors(resolved: ResolvedRecipe) -> Iterator[FieldError]:
    """Errors of the trackers, and of flags that have no effect without one."""
    tracking = resolved.tracking
    used = () if tracking is None else (tracking.tensorboard, tracking.wandb, tracking.mlflow)
    if all(each is None for each in used):
        if tracking is not None:
            yield FieldError("spec.tracking", "names no tracker", "set tensorboard: {}, or leave it out")
        for flag in _FLAGS:
            if resolved.megatron_args.get(flag):
                field = field_path("spec.megatronArgs", flag)
                yield FieldError(field, "has no effect without spec.tracking", "set tracking.tensorboard: {}")
        return
    if resolved.profile.platform == "cpu" and resolved.megatron_args.get("log-memory-to-tensorboard"):
        field = "spec.megatronArgs.log-memory-to-tensorboard"
        yield FieldError(field, "reads the memory of GPUs, and the profile has none", "leave it out")
    yield from _wandb_errors(resolved)
    yield from _repeated_credentials(resolved)


def _wandb_errors(resolved: ResolvedRecipe) -> Iterator[FieldError]:
    wandb = resolved.tracking.wandb if resolved.tracking else None
    if wandb is None:
        return
    field = "spec.tracking.wandb"
    if wandb.mode == "offline" and wandb.secret_key_ref is not None:
        message = "is not used with mode offline: nothing is uploaded"
        yield FieldError(f"{field}.secretKeyRef", message, "leave it out, or set mode: online")
    known = {*resolved.env, *resolved.env_value_from}
    if wandb.mode == "online" and WANDB_KEY not in known and not resolved.env_from:
        message = "is not set: without an API key nothing can be uploaded"
        fix = "set it to a key of a Secret, or set mode: offline"
        yield FieldError(f"{field}.secretKeyRef", message, fix)


def _repeated_credentials(resolved: ResolvedRecipe) -> Iterator[FieldError]:
    """Errors for credentials that the recipe also sets as variables."""
    tracking = resolved.tracking
    assert tracking is not None, "checked by the caller"
    for name, field in ((WANDB_KEY, "wandb"), (MLFLOW_TOKEN, "mlflow")):
        source = tracking.credentials().get(name)
        if source is None:
            continue
        at = f"spec.tracking.{field}.secretKeyRef"
        if name in resolved.env:
            yield FieldError(at, f"is set together with env.{name}", "keep one of the two")
        elif resolved.env_value_from.get(name) != source:
            yield FieldError(at, f"is set together with envValueFrom.{name}", "keep one of the two")
