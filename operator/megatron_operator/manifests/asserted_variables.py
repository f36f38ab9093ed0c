"""Values of `env` with which Megatron's own loop ends at its start.

Sources: `_set_attention_backend` and `validate_args` of megatron-core 0.19.2.
"""

from collections.abc import Iterator
from typing import Final

from megatron_operator.api.errors import FieldError, shown
from megatron_operator.api.status import Plan
from megatron_operator.catalog.resolved import ResolvedRecipe
from megatron_operator.manifests.gpu_environment import CONNECTIONS, gpu_environment
from megatron_operator.planner.checks.flag_requirements import EXPERT_OVERLAP
from megatron_operator.planner.estimate import hardware

KERNELS: Final = ("NVTE_FLASH_ATTN", "NVTE_FUSED_ATTN", "NVTE_UNFUSED_ATTN")
OF_BACKEND: Final = {"auto": "111", "flash": "100", "fused": "010", "unfused": "001", "local": "000"}
"""`training.attentionBackend` -> the values of those variables, one character each."""
_BEFORE_BLACKWELL: Final = ("ampere", "ada", "hopper")


def asserted_errors(resolved: ResolvedRecipe, plan: Plan) -> Iterator[FieldError]:
    """Errors for variables of `env` that have another value than Megatron asserts."""
    if resolved.engine != "megatron":
        return
    backend = resolved.training.attention_backend or "auto"
    for name, expected in zip(KERNELS, OF_BACKEND[backend], strict=True):
        value = resolved.env.get(name, expected)
        if value != expected:
            message = f"{shown(value)}, and Megatron requires {expected} with attentionBackend {backend}"
            yield FieldError(f"spec.env.{name}", message, "leave it out, and set training.attentionBackend")
    yield from _connection_errors(resolved, plan)


def _connection_errors(resolved: ResolvedRecipe, plan: Plan) -> Iterator[FieldError]:
    value, field = resolved.env.get(CONNECTIONS), f"spec.env.{CONNECTIONS}"
    if value is None:
        return
    if plan.use_megatron_fsdp:
        if value == "1":
            yield FieldError(field, "1, which Megatron refuses with useMegatronFsdp", "leave it out")
        return
    accelerator = hardware.of_profile(resolved.accelerator_type, resolved.profile)
    is_older = accelerator is not None and accelerator.architecture in _BEFORE_BLACKWELL
    is_asserted = is_older and gpu_environment(resolved, plan).get(CONNECTIONS) == "1"
    if value != "1" and is_asserted and not resolved.megatron_args.get(EXPERT_OVERLAP):
        message = f"{shown(value)}, and Megatron requires 1 with TP or CP on GPUs before Blackwell"
        yield FieldError(field, message, "leave it out, or plan with TP 1 and CP 1")
