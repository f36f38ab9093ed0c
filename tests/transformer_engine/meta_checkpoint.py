"""The checkpoint that a gang saves of a full-size model and its optimizer, planned by Megatron and torch.

The model and the optimizer's states are on the meta device, so nothing is written. What comes before is real:
Megatron's state of a rank, its translation for torch, the rank's own plan and the plan of the whole gang.
"""

import contextlib
import io
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from cases import Case
from megatron.core.dist_checkpointing.mapping import ShardedTensor
from megatron.core.dist_checkpointing.state_dict_utils import save_preprocess
from megatron.core.dist_checkpointing.strategies import torch as strategy
from megatron.core.optimizer import get_megatron_optimizer
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.training import checkpointing, training
from megatron.training.models.gpt import GPTModelBuilder
from meta_model import meta_device, sharded_tensors, start
from stages import Megatron
from torch.distributed.checkpoint import SavePlan, TensorStorageMetadata


def first_ranks(case: Case) -> list[int]:
    """The first rank of every pipeline stage."""
    stages = case.plan.pipeline_model_parallel_size
    return [stage * (case.world_size // stages) for stage in range(stages)]


def state(megatron: Megatron, case: Case, rank: int) -> dict[str, Any]:
    """What a rank saves, by Megatron's own steps from the argument list: model, optimizer, state."""
    started = start(megatron, case.words, case.world_size, rank)
    groups = ProcessGroupCollection.use_mpu_process_groups()
    with meta_device(), contextlib.redirect_stdout(io.StringIO()):
        model = GPTModelBuilder(started.model).build_distributed_models(groups, started.container.ddp)
        config, overrides = training.get_megatron_optimizer_config(started.args)
        optimizer = get_megatron_optimizer(
            config, model, config_overrides=overrides, use_gloo_process_groups=False
        )
        metadata = checkpointing._build_sharded_state_dict_metadata(started.args)
        generated = checkpointing.generate_state_dict(
            started.args,
            model,
            optimizer,
            opt_param_scheduler=None,
            rng_state=None,
            # As at a load: the optimizer's states are made without a step.
            optim_sd_kwargs={"metadata": metadata, "is_loading": True},
            model_sd_kwargs={"metadata": metadata},
        )
        sharded, _ = save_preprocess(generated, validate_access_integrity=False)
    return dict(sharded)


@dataclass(frozen=True)
class Sizes:
    """Bytes of a checkpoint of all ranks."""

    model: int
    optimizer: int

    @property
    def total(self) -> int:
        return self.model + self.optimizer


def sizes(case: Case, stages: Iterable[Mapping[str, Any]]) -> Sizes:
    """Sizes of the checkpoint of which these are the first ranks of every pipeline stage.

    Ranks share the model's tensors. The optimizer keeps its states in the buckets of its gradients, and every
    tensor- and expert-parallel rank has an optimizer of its own, with the same sizes.
    """
    plan = case.plan
    model: dict[str, int] = {}
    optimizer = 0
    for stage in stages:
        buckets: dict[str, int] = {}
        for tensor in sharded_tensors(stage):
            (buckets if "optimizer." in tensor.key else model)[tensor.key] = _bytes(tensor)
        for key, size in buckets.items():
            # Megatron chains two optimizers where there are experts: theirs is the second.
            experts = key.startswith("chained_1.")
            ranks = plan.expert_tensor_parallel_size * plan.expert_model_parallel_size
            optimizer += size * (ranks if experts else plan.tensor_model_parallel_size)
    return Sizes(sum(model.values()), optimizer)


def _bytes(tensor: ShardedTensor) -> int:
    return math.prod(tensor.global_shape) * int(tensor.dtype.itemsize)


def planner(rank_state: Mapping[str, Any]) -> Any:
    """Megatron's planner of a rank with the plan of what the rank writes, as its save strategy makes it."""
    named, _, _ = strategy._replace_state_dict_keys_with_sharded_keys(dict(rank_state), True)
    made = strategy.MCoreSavePlanner(
        dedup_replicated_tensors=False, flatten_state_dict=False, flatten_sharded_tensors=False
    )
    made.set_up_planner(strategy.mcore_to_pyt_state_dict(named, False), is_coordinator=True)
    made.create_local_plan()
    return made


@dataclass(frozen=True)
class Planned:
    """A checkpoint that torch has planned over all ranks."""

    tensor_bytes: int
    files: int
    """One of each rank that writes anything."""


def planned(coordinator: Any, plans: list[SavePlan]) -> Planned:
    """Plan the gang's checkpoint. Raises ValueError if parts overlap or a tensor is not covered."""
    _, metadata = coordinator.create_global_plan(plans)
    tensors = [v for v in metadata.state_dict_metadata.values() if isinstance(v, TensorStorageMetadata)]
    size = sum(math.prod(tensor.size) * int(tensor.properties.dtype.itemsize) for tensor in tensors)
    return Planned(size, sum(bool(plan.items) for plan in plans))
