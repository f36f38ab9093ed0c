"""Variables of GPU pods follow hardware, layout and checkpoints, as in Megatron-Bridge's recipes."""

from typing import Any

import pytest
from megatron_operator.manifests.gpu_environment import gpu_environment
from megatron_operator.planner.automatic_flags import automatic_flags

HOPPER, BLACKWELL, CPU = "llama3-8b-64-gpus", "llama3.1-8b-queued", "tiny-gpt"
TENSOR = {"parallelism": {"tensorModelParallelSize": 2, "contextParallelSize": 1}}
TENSOR_FSDP = {"parallelism": {"tensorModelParallelSize": 2, "useMegatronFsdp": True}}
DATA_ONLY = {"parallelism": {"tensorModelParallelSize": 1, "contextParallelSize": 1}}
USER_BUFFERS = {"image": "own", "megatronArgs": {"use-nccl-ub": True}}
MARGINS = ("NVTE_FWD_LAYERNORM_SM_MARGIN", "NVTE_BWD_LAYERNORM_SM_MARGIN")


def environment(run: Any, recipe: str, **change: Any) -> dict[str, str]:
    return dict(run(recipe, lambda spec: spec.update(change)).env())


def on_hardware(run: Any, name: str, **change: Any) -> dict[str, str]:
    """The environment of a run on a profile that has the planner's name of other hardware."""
    planned = run(HOPPER, lambda spec: spec.update(change))
    profile = planned.resolved.profile.model_copy(update={"hardware": name})
    planned.resolved = planned.resolved.model_copy(update={"profile": profile})
    return dict(planned.env())


@pytest.mark.parametrize(
    ("recipe", "change", "expected"),
    [
        (HOPPER, TENSOR, "1"),
        (HOPPER, DATA_ONLY, "32"),
        (BLACKWELL, {}, "32"),
        (BLACKWELL, {"parallelism": {"tensorModelParallelSize": 2}}, "32"),
        (HOPPER, TENSOR_FSDP, "32"),
        (CPU, {}, None),
    ],
    ids=[
        *("tensor parallel on Hopper", "data parallel on Hopper", "Blackwell", "TP on Blackwell"),
        *("FSDP and TP on Hopper", "no GPU"),
    ],
)
def test_one_cuda_connection_only_where_megatron_asserts_it(
    run: Any, recipe: str, change: dict[str, Any], expected: str | None
) -> None:
    assert environment(run, recipe, **change).get("CUDA_DEVICE_MAX_CONNECTIONS") == expected


def test_hardware_without_a_recipe_of_bridge_keeps_what_megatron_asserts(run: Any) -> None:
    assert on_hardware(run, "a100-80", **TENSOR)["CUDA_DEVICE_MAX_CONNECTIONS"] == "1"
    assert on_hardware(run, "some-gpu", **TENSOR)["CUDA_DEVICE_MAX_CONNECTIONS"] == "1"
    assert "CUDA_DEVICE_MAX_CONNECTIONS" not in on_hardware(run, "a100-80", **DATA_ONLY)


def test_segments_expand_and_nccl_leaves_the_buffers_of_graphs_alone(run: Any) -> None:
    env = environment(run, HOPPER, checkpoint={"asyncSave": False})
    assert env["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True"
    assert env["NCCL_GRAPH_REGISTER"] == "0"


@pytest.mark.parametrize(
    "change",
    [{"checkpoint": {"asyncSave": True}}, USER_BUFFERS],
    ids=["asynchronous writers", "user buffers of NCCL"],
)
def test_segments_do_not_expand_where_others_map_the_memory(run: Any, change: dict[str, Any]) -> None:
    settings = {"checkpoint": {"asyncSave": False}} | change
    assert "PYTORCH_CUDA_ALLOC_CONF" not in environment(run, HOPPER, **settings)


def test_norms_leave_multiprocessors_to_communication_on_hopper_and_later(run: Any) -> None:
    for recipe in (HOPPER, BLACKWELL):
        env = environment(run, recipe)
        assert [env[name] for name in MARGINS] == ["20", "20"]
    assert not set(MARGINS) & on_hardware(run, "a100-80").keys()
    assert not set(MARGINS) & environment(run, "one-gpu").keys()


def test_nccl_takes_no_memory_for_nvlink_sharp_unless_its_buffers_are_registered(run: Any) -> None:
    for recipe in (HOPPER, BLACKWELL):
        assert environment(run, recipe)["NCCL_NVLS_ENABLE"] == "0"
    for env in (
        environment(run, HOPPER, **USER_BUFFERS, checkpoint={"asyncSave": False}),
        on_hardware(run, "a100-80"),
        environment(run, "one-gpu"),
    ):
        assert "NCCL_NVLS_ENABLE" not in env


def test_communication_has_priority_over_computation_on_hopper_and_later(run: Any) -> None:
    for recipe in (HOPPER, BLACKWELL):
        assert environment(run, recipe)["TORCH_NCCL_HIGH_PRIORITY"] == "1"
    assert "TORCH_NCCL_HIGH_PRIORITY" not in on_hardware(run, "a100-80")


def test_platform_cpu_has_no_variable_of_gpus(run: Any) -> None:
    assert not {"PYTORCH_CUDA_ALLOC_CONF", *MARGINS} & environment(run, CPU).keys()


def test_the_recipe_overrides_each_variable(run: Any) -> None:
    own = {"PYTORCH_CUDA_ALLOC_CONF": "", "CUDA_DEVICE_MAX_CONNECTIONS": "8", MARGINS[0]: "0"}
    env = environment(run, HOPPER, **DATA_ONLY, env=own)
    assert {name: env[name] for name in own} == own


def test_arguments_and_environment_know_the_same_generations(run: Any) -> None:
    """Also for names that are not in the table."""
    planned = run(HOPPER)
    experts = planned.resolved.model.model_copy(update={"num_experts": 8})
    for name, known in (("b200-custom", True), ("gr300", True), ("h200", True), ("some-gpu", False)):
        profile = planned.resolved.profile.model_copy(update={"hardware": name})
        update = {"profile": profile, "model": experts}
        resolved = planned.resolved.model_copy(update=update)
        flags = automatic_flags(resolved, planned.plan)
        margins = set(MARGINS) <= gpu_environment(resolved, planned.plan).keys()
        assert ("--moe-router-fusion" in flags, margins) == (known, known), name


def with_dispatcher(run: Any, backend: str, ep: int, hardware: str) -> dict[str, str]:
    """The environment of a run whose plan and settings are changed to those of experts on `ep` ranks."""
    planned = run(HOPPER)
    resolved = planned.resolved
    profile = resolved.profile.model_copy(update={"hardware": hardware})
    model = resolved.model.model_copy(update={"moe_token_dispatcher_type": "flex"})
    args = {"moe-flex-dispatcher-backend": backend}
    resolved = resolved.model_copy(update={"profile": profile, "model": model, "megatron_args": args})
    plan = planned.plan.model_copy(update={"expert_model_parallel_size": ep})
    return gpu_environment(resolved, plan)


@pytest.mark.parametrize(
    ("hardware", "ep", "expected"),
    [
        ("h100-sxm", 64, ("8", "8", "0")),
        ("h100-sxm", 4, ("4", "8", "0")),
        ("gb200", 64, ("64", "72", "1")),
    ],
)
def test_hybridep_knows_the_nvlink_domain(
    run: Any, hardware: str, ep: int, expected: tuple[str, str, str]
) -> None:
    names = ("NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN", "NVLINK_DOMAIN_SIZE", "USE_MNNVL")
    env = with_dispatcher(run, "hybridep", ep, hardware)
    assert tuple(env[name] for name in names) == expected
    assert not set(names) & with_dispatcher(run, "deepep", ep, hardware).keys()


def test_fused_experts_are_switched_on_where_megatron_asserts_it(run: Any) -> None:
    name = "NVTE_CUTEDSL_FUSED_GROUPED_MLP"
    fused = environment(run, HOPPER, megatronArgs={"use-transformer-engine-op-fuser": True})
    assert fused[name] == "1"
    assert name not in environment(run, HOPPER)
