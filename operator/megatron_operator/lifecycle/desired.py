"""What should exist for a recipe: its plan and the objects that express it."""

import json
from dataclasses import dataclass, field, replace
from typing import Any, Final

from megatron_contract.environment import CHECKPOINT_DIR
from megatron_contract.wire import WireError, load_json

from megatron_operator import planner
from megatron_operator.api.errors import FieldError
from megatron_operator.api.fine_tuning import IMPORTED, WeightsSource
from megatron_operator.api.labels import GROUP
from megatron_operator.api.platform import PlatformConfig
from megatron_operator.api.recipe import MegatronRecipeSpec
from megatron_operator.api.recovery_status import RecoveryStatus
from megatron_operator.api.status import CheckpointStatus, MegatronRecipeStatus, Plan
from megatron_operator.api.validation import parse_spec
from megatron_operator.catalog import Catalog, ResolvedRecipe, hub
from megatron_operator.lifecycle.checkpoint_compatibility import (
    MODEL_FOLDER,
    SOURCE,
    changed_setting,
    checkpoint_contract,
    contract_violations,
)
from megatron_operator.lifecycle.plan_cache import PlanCache
from megatron_operator.lifecycle.status_builder import StatusBuilder
from megatron_operator.manifests import Manifests, build
from megatron_operator.planner import PlannedRun

ANNOTATION_CONTRACT: Final = f"{GROUP}/checkpoint-contract"
"""On the job: the settings that its checkpoints fix, as JSON."""
LONGEST_CONTRACT: Final = 16 << 10
"""Characters of that annotation; it enters the status."""


@dataclass(frozen=True, slots=True)
class Config:
    """The platform configuration and the catalog that recipes are resolved against."""

    platform: PlatformConfig
    catalog: Catalog
    plans: PlanCache = field(default_factory=PlanCache, compare=False, repr=False)
    """Plans that were made from this configuration."""


@dataclass(frozen=True, slots=True)
class DesiredState:
    """A planned run and its objects."""

    run: PlannedRun
    manifests: Manifests
    contract: dict[str, str]
    """Path below `spec` -> value of every setting that a checkpoint of this run fixes."""
    requested: int
    """`spec.accelerator.count`; an elastic run may have fewer."""

    @property
    def plan(self) -> Plan:
        """How the run is mapped to its accelerators."""
        return self.run.plan

    @property
    def job_hash(self) -> str:
        """Hash of the training job's manifest."""
        return self.manifests.job_hash


def desired_state(status: StatusBuilder, config: Config, count: int | None = None) -> DesiredState:
    """What should exist for the recipe on `count` accelerators, by default the count in its status.

    Raises InvalidRecipeError with all reasons when the recipe cannot run so.
    """
    namespace, name = status.key
    requested, resolved, plan = config.plans.get(
        _planned_from(status, count), lambda: _planned(status, config, count)
    )
    run = PlannedRun(name, namespace, resolved, plan)
    # A run with a checkpoint must not start from random weights because the checkpoint cannot be found.
    require = status.checkpoint.iteration is not None
    manifests = build(run, status.uid, require_checkpoint=require)
    contract = checkpoint_contract(run.resolved, run.plan, run.arguments)
    annotated = replace(manifests, job=_with_contract(manifests.job, contract))
    return DesiredState(run, annotated, contract, requested)


def _planned(status: StatusBuilder, config: Config, count: int | None) -> tuple[int, ResolvedRecipe, Plan]:
    """The number of accelerators that the recipe asks for, and its plan on `count` of them."""
    namespace, name = status.key
    spec = parse_spec(status.spec)
    requested, previous = spec.accelerator.count, status.current.plan
    count = count or current_count(status, spec)
    if count != requested:
        spec = spec.model_copy(update={"accelerator": spec.accelerator.model_copy(update={"count": count})})
    # A layout chosen for fewer accelerators is no model for more of them.
    grows = spec.recovery.elastic is not None and previous is not None and count > previous.world_size
    run = planner.admit(
        name, spec, config.platform, config.catalog, namespace, previous, keeps_layout=not grows
    )
    return requested, run.resolved, run.plan


def _planned_from(status: StatusBuilder, count: int | None) -> tuple[object, ...]:
    """Everything of a recipe that `_planned` reads, but its name, which no plan depends on."""
    previous, elastic = status.current.plan, status.recovery.elastic
    return (
        status.spec,
        status.key.namespace,
        count,
        None if previous is None else previous.model_dump_json(),
        None if elastic is None else elastic.model_dump_json(),
    )


def current_count(status: StatusBuilder, spec: MegatronRecipeSpec) -> int:
    """Accelerators of the run: those requested, or fewer after an elastic run was shrunk."""
    elastic, shrunk, requested = spec.recovery.elastic, status.recovery.elastic, spec.accelerator.count
    if elastic is None or shrunk is None or not elastic.min_count <= shrunk.count < requested:
        return requested
    return shrunk.count


def planning_input(status: StatusBuilder) -> StatusBuilder:
    """The recipe with only what `desired_state` reads: small, and equal while the plan is the same."""
    metadata = {name: status.body["metadata"].get(name) for name in ("namespace", "name", "uid")}
    state = MegatronRecipeStatus(
        plan=status.current.plan,
        recovery=RecoveryStatus(elastic=status.recovery.elastic),
        checkpoint=CheckpointStatus(iteration=status.checkpoint.iteration),
    )
    return StatusBuilder({"metadata": metadata, "spec": status.spec}, 0.0, state)


def can_continue_with(status: StatusBuilder, desired: DesiredState) -> bool:
    """Whether the run can continue as `desired`, with the same batch size and its checkpoints."""
    before = status.current.plan
    same_batch = before is None or desired.plan.global_batch_size == before.global_batch_size
    return same_batch and not checkpoint_conflicts(status, desired)


def checkpoint_conflicts(status: StatusBuilder, desired: DesiredState) -> list[FieldError]:
    """Settings that the run's checkpoints cannot be loaded with; none while it has no checkpoint."""
    before = status.checkpoint.contract
    if before is None or not has_begun(status):
        return []
    iteration = status.checkpoint.iteration
    field = _field_of_model(desired.run.resolved, before.get(MODEL_FOLDER) or "")
    errors = []
    trained = max(iteration or 0, status.progress.iteration or 0)
    for each in contract_violations(before, desired.contract, iteration, trained):
        if each.field == f"spec.{MODEL_FOLDER}":
            errors.append(replace(each, field=field))
        elif each.field == f"spec.{SOURCE}" and (source := desired.run.resolved.init.source) is not None:
            errors.append(_source_error(source, before.get(SOURCE), iteration))
        else:
            errors.append(each)
    return errors


def _field_of_model(resolved: ResolvedRecipe, before: str) -> str:
    """The field that names the folder of the model, or that named the folder `before`.

    A recipe has `init.modelFolder` unset where its function has the architecture itself, and refuses it.
    """
    init = resolved.init
    if init.folder_of_model is not None:
        return f"spec.{init.field_of_model}"
    return f"spec.init.from.huggingFace.{'name' if before.startswith(hub.FOLDERS) else 'path'}"


def _source_error(source: WeightsSource, before: str | None, iteration: int | None) -> FieldError:
    """The error for weights of another `source` than the checkpoint `before`, both as its field has them."""
    known, edited = before or "none", source.checkpoint
    if source.recipe is not None:
        known, edited = (each.removeprefix(f"{CHECKPOINT_DIR}/") for each in (known, edited))
    elif source.hugging_face is not None and f"{known}{IMPORTED}" != edited:
        known, edited = (each.removesuffix(IMPORTED) for each in (known, edited))
    return changed_setting(source.field, known, edited, iteration)


def has_begun(status: StatusBuilder) -> bool:
    """Whether the run may have a checkpoint."""
    return status.checkpoint.iteration is not None or bool(status.progress.iteration)


def has_had_job(status: StatusBuilder) -> bool:
    """Whether the recipe with this UID has had a training job: its contract outlives the job."""
    return status.checkpoint.contract is not None or has_begun(status)


def contract_of(job: dict[str, Any]) -> dict[str, str] | None:
    """The checkpoint contract that a job was created with; None where it has none that can be read.

    Whoever may edit the job may have edited it.
    """
    text = (job["metadata"].get("annotations") or {}).get(ANNOTATION_CONTRACT)
    if not text or len(text) > LONGEST_CONTRACT:
        return None
    try:
        contract = load_json(text)
    except WireError:
        return None
    if not isinstance(contract, dict) or not all(isinstance(each, str) for each in contract.values()):
        return None
    return contract


def _with_contract(job: dict[str, Any], contract: dict[str, str]) -> dict[str, Any]:
    metadata = job["metadata"]
    annotations = metadata["annotations"] | {ANNOTATION_CONTRACT: json.dumps(contract)}
    return job | {"metadata": metadata | {"annotations": annotations}}
