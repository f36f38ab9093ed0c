"""Environment of trainer pods with GPUs that Megatron-Bridge's recipes of that hardware have.

docs/planner.md lists each variable with its source. `env` of the profile and of the recipe override them.
"""

from megatron_contract.environment import CHECKPOINT_DIR

from megatron_operator.api.status import Plan
from megatron_operator.catalog.entry import BACKEND
from megatron_operator.catalog.resolved import ResolvedRecipe
from megatron_operator.planner.estimate import hardware

_COMPILE_CACHES = {
    "TRITON_CACHE_DIR": f"{CHECKPOINT_DIR}/.compile-cache/triton",
    "TORCHINDUCTOR_CACHE_DIR": f"{CHECKPOINT_DIR}/.compile-cache/inductor",
}
"""On the volume, so that a replaced pod compiles no kernel again; all runs of a volume share them."""
_SM_MARGIN = "20"
CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"


def gpu_environment(resolved: ResolvedRecipe, plan: Plan) -> dict[str, str]:
    """Variables of one container by name; none on platform cpu."""
    if resolved.profile.platform != "gpu":
        return {}
    values = dict(_COMPILE_CACHES)
    connections = _connections(resolved, plan)
    if connections is not None:
        values[CONNECTIONS] = connections
    if not _shares_device_memory(resolved):
        # Megatron refuses expandable segments with CUDA graphs unless NCCL leaves the graphs' buffers alone.
        values |= {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "NCCL_GRAPH_REGISTER": "0"}
    if _generation(resolved) is not None and plan.world_size > 1:
        values |= {"NVTE_FWD_LAYERNORM_SM_MARGIN": _SM_MARGIN, "NVTE_BWD_LAYERNORM_SM_MARGIN": _SM_MARGIN}
        values["TORCH_NCCL_HIGH_PRIORITY"] = "1"
        if not resolved.megatron_args.get("use-nccl-ub"):  # which Megatron sets it to 1 for
            values["NCCL_NVLS_ENABLE"] = "0"
    return values | _experts(resolved, plan)


def _experts(resolved: ResolvedRecipe, plan: Plan) -> dict[str, str]:
    """What the fused experts and the dispatcher's package HybridEP read from the environment.

    Megatron refuses the fuser without its variable (`TEGroupedMLP._is_fused_impl_supported`).
    """
    args = resolved.megatron_args
    values: dict[str, str] = {}
    if args.get("use-transformer-engine-op-fuser"):
        values |= {"NVTE_CUTEDSL_FUSED_GROUPED_MLP": "1", "CUDNNFE_CLUSTER_OVERLAP_MARGIN": "8"}
    if args.get(BACKEND) == "hybridep" and resolved.model.moe_token_dispatcher_type == "flex":
        accelerator = hardware.of_profile(resolved.accelerator_type, resolved.profile)
        domain = hardware.nvlink_ranks(accelerator, plan.per_node)
        values |= {
            "NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN": str(min(plan.expert_model_parallel_size, domain)),
            "NUM_OF_TOKENS_PER_CHUNK_COMBINE_API": "128",
            "NVLINK_DOMAIN_SIZE": str(domain),
            "USE_MNNVL": "1" if domain > plan.per_node else "0",
        }
    return values


def _generation(resolved: ResolvedRecipe) -> hardware.Generation | None:
    return hardware.generation(resolved.accelerator_type, resolved.profile)


def _connections(resolved: ResolvedRecipe, plan: Plan) -> str | None:
    """Hardware queues: 1 where Megatron asserts it (TP or CP before Blackwell, not with FSDP), else 32.

    32 is Megatron-Bridge's. None, the trainer's choice, where no recipe of Bridge has that hardware.
    """
    split = plan.tensor_model_parallel_size > 1 or plan.context_parallel_size > 1
    generation = _generation(resolved)
    fsdp = plan.use_megatron_fsdp
    if split and generation is not hardware.Generation.BLACKWELL and not fsdp:
        return "1"
    return "32" if generation is not None or fsdp else None


def _shares_device_memory(resolved: ResolvedRecipe) -> bool:
    """Whether another process or NCCL maps the allocator's memory, which expandable segments prevent.

    Megatron's writer of asynchronous checkpoints receives tensors through CUDA IPC. With expandable segments
    that needs pidfd_getfd, which a container without privileges may not call (pytorch/pytorch#165685).
    """
    args = resolved.megatron_args
    return bool(resolved.checkpoint.async_save or args.get("use-nccl-ub"))
