"""Environment variables of trainer pods: contract with the trainer, Megatron, profile and recipe."""

import json
from collections.abc import Iterator, Mapping

from megatron_contract.environment import (
    DEFAULT_TERMINATION_LOG,
    ENV_BIND_CPUS,
    ENV_ENGINE,
    ENV_GANG_TOKEN_FILE,
    ENV_HANG_TIMEOUT,
    ENV_KEEP_BEST,
    ENV_KEEP_CHECKPOINTS,
    ENV_LOSS_ON_REPEAT,
    ENV_LOSS_SPIKE_FACTOR,
    ENV_LOSS_SPIKE_WINDOW,
    ENV_MAX_RANK_RESTARTS,
    ENV_NODE_NAME,
    ENV_PLATFORM,
    ENV_PREFLIGHT,
    ENV_PROFILE,
    ENV_PROGRESS_PORT,
    ENV_RENDEZVOUS_TIMEOUT,
    ENV_REQUIRE_CHECKPOINT,
    ENV_RUN_ID,
    ENV_SECRET_VARIABLES,
    ENV_TERMINATION_GRACE,
    ENV_TERMINATION_LOG,
    ENV_TRACKING,
    GANG_TOKEN_DIR,
    GANG_TOKEN_FILE,
    PROGRESS_PORT,
    SETTINGS,
)
from megatron_contract.tracking import MlflowRun, Tracking, WandbRun

from megatron_operator.api import reserved_names
from megatron_operator.api.errors import FieldError, InvalidRecipeError
from megatron_operator.api.recipe import RecoverySpec
from megatron_operator.api.status import Plan
from megatron_operator.api.tracking import TrackingSpec
from megatron_operator.catalog.resolved import ResolvedRecipe
from megatron_operator.manifests.asserted_variables import asserted_errors
from megatron_operator.manifests.gpu_environment import gpu_environment
from megatron_operator.manifests.grace import SHUTDOWN_SECONDS, grace_seconds
from megatron_operator.manifests.metadata import Manifest


def environment(
    resolved: ResolvedRecipe, plan: Plan, run_id: str, name: str, *, require_checkpoint: bool
) -> list[Manifest]:
    """Entries of the container's `env`. Later sources win: Megatron, profile, recipe, contract.

    `run_id` is the recipe's uid, `name` its name.
    Raises InvalidRecipeError if the recipe sets a name that the operator reserves, or a value that Megatron
    refuses.
    """
    sources = {name: source.wire() for name, source in resolved.env_value_from.items()}
    if errors := [*_reserved_names(resolved), *asserted_errors(resolved, plan)]:
        raise InvalidRecipeError(errors)
    if resolved.recovery.preflight:
        sources[ENV_NODE_NAME] = {"fieldRef": {"fieldPath": "spec.nodeName"}}
    values: dict[str, str] = {"HOME": "/tmp"}
    values |= gpu_environment(resolved, plan)
    values |= resolved.env
    values |= {
        ENV_PLATFORM: resolved.profile.platform,
        ENV_RUN_ID: run_id,
        ENV_GANG_TOKEN_FILE: f"{GANG_TOKEN_DIR}/{GANG_TOKEN_FILE}",
        ENV_PROGRESS_PORT: str(PROGRESS_PORT),
        ENV_MAX_RANK_RESTARTS: str(resolved.recovery.max_rank_restarts),
        ENV_RENDEZVOUS_TIMEOUT: str(resolved.recovery.rendezvous_timeout),
        ENV_TERMINATION_GRACE: str(grace_seconds(resolved, plan) - SHUTDOWN_SECONDS),
    }
    values |= _recovery_settings(resolved.recovery)
    if resolved.engine == "bridge":
        values[ENV_ENGINE] = resolved.engine
    if not resolved.profile.bind_cpus:
        values[ENV_BIND_CPUS] = "0"
    if resolved.checkpoint.keep is not None:
        values[ENV_KEEP_CHECKPOINTS] = str(resolved.checkpoint.keep)
    if resolved.checkpoint.keep_best:
        values[ENV_KEEP_BEST] = "1"
    if (window := resolved.profile_window) is not None:
        values[ENV_PROFILE] = f"{window.start}-{window.end}:{','.join(map(str, window.ranks))}"
    if resolved.tracking is not None:
        values[ENV_TRACKING] = _tracking(resolved.tracking, name)
    if require_checkpoint:
        values[ENV_REQUIRE_CHECKPOINT] = "1"
    if resolved.env_from:
        # Keys of a Secret are not known here: no key may become a setting that is not set above.
        values = {**dict.fromkeys(SETTINGS, ""), ENV_TERMINATION_LOG: DEFAULT_TERMINATION_LOG} | values
    if secret := _secret_variables(resolved, values):
        values[ENV_SECRET_VARIABLES] = secret
    entries: list[Manifest] = [
        {"name": name, "value": value} for name, value in values.items() if name not in sources
    ]
    return [*entries, *({"name": name, "valueFrom": source} for name, source in sources.items())]


def _tracking(spec: TrackingSpec, name: str) -> str:
    """The trackers as the trainer reads them; a run without a name has that of the recipe."""
    wandb = mlflow = None
    if (run := spec.wandb) is not None:
        wandb = WandbRun(run.project, run.entity, run.name or name, run.mode == "offline")
    if (server := spec.mlflow) is not None:
        mlflow = MlflowRun(server.tracking_uri, server.experiment, server.name or name)
    trackers = Tracking(tensorboard=spec.tensorboard is not None, wandb=wandb, mlflow=mlflow)
    return json.dumps(trackers.to_json(), separators=(",", ":"))


def _secret_variables(resolved: ResolvedRecipe, values: Mapping[str, str]) -> str:
    """Names of the variables with values of Secrets, in the form that the trainer reads."""
    secret = {name for name, source in resolved.env_value_from.items() if source.secret_key_ref}
    if any(source.secret_ref for source in resolved.env_from):
        # The keys of a whole Secret are not known here, but all others are.
        known = (values.keys() | resolved.env_value_from.keys()) - secret - {ENV_SECRET_VARIABLES}
        return " ".join(["*", *(f"-{name}" for name in sorted(known))])
    return " ".join(sorted(secret))


def environment_objects(resolved: ResolvedRecipe) -> list[Manifest]:
    """Entries of the container's `envFrom`. Variables of `env` override theirs."""
    return [source.wire() for source in resolved.env_from]


def _reserved_names(resolved: ResolvedRecipe) -> Iterator[FieldError]:
    """Errors for names that the operator reserves."""
    reserved = dict.fromkeys(reserved_names.ENVIRONMENT, "is set by the operator")
    if resolved.profile.platform != "cpu":
        reserved[reserved_names.HIDES_DEVICES] = "would hide accelerators of the pod from its ranks"
    for field, values in (("env", resolved.env), ("envValueFrom", resolved.env_value_from)):
        for name in sorted(reserved.keys() & values.keys()):
            yield FieldError(f"spec.{field}.{name}", reserved[name], "leave it out")


def _recovery_settings(recovery: RecoverySpec) -> dict[str, str]:
    """Settings of the trainer's own failure detection that differ from its defaults."""
    values: dict[str, str] = {}
    if recovery.hang_timeout != "auto":
        values[ENV_HANG_TIMEOUT] = recovery.hang_timeout.removesuffix("s")
    if recovery.preflight:
        values[ENV_PREFLIGHT] = "1"
    if recovery.loss.spike_factor is not None:
        values[ENV_LOSS_SPIKE_FACTOR] = f"{recovery.loss.spike_factor:g}"
        values[ENV_LOSS_SPIKE_WINDOW] = str(recovery.loss.spike_window)
    if recovery.loss.on_repeat != "fail":
        values[ENV_LOSS_ON_REPEAT] = recovery.loss.on_repeat
    return values
