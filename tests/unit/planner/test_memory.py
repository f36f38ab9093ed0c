"""Memory of the GPU that needs most: what each part depends on. Agreement with Megatron: tests/megatron."""

import dataclasses
from typing import Any

import pytest
from megatron_operator.api.diagnostics import Diagnostics
from megatron_operator.api.model import ModelSpec
from megatron_operator.api.parallel_dims import ParallelDims
from megatron_operator.api.training import TrainingSpec
from megatron_operator.planner import plan
from megatron_operator.planner.estimate import memory
from megatron_operator.planner.estimate.hardware import GIB
from megatron_operator.planner.estimate.kept import layer_bytes
from megatron_operator.planner.estimate.layers import DENSE, EXPERTS
from megatron_operator.planner.estimate.memory import activations, memory_per_gpu, states
from megatron_operator.planner.estimate.model_shape import ModelShape, model_shape
from megatron_operator.planner.estimate.workload import (
    Execution,
    Numerics,
    Recomputation,
    Workload,
    kinds_of_stages,
    numerics,
)

LLAMA = {
    "numLayers": 80, "hiddenSize": 8192, "ffnHiddenSize": 28672, "numAttentionHeads": 64, "numQueryGroups": 8,
    "vocabSize": 128256, "maxPositionEmbeddings": 8192, "positionEmbeddingType": "rope", "swiglu": True,
    "normalization": "RMSNorm", "disableBiasLinear": True, "untieEmbeddingsAndOutputWeights": True,
}  # fmt: skip
MIXTRAL = LLAMA | {
    "numLayers": 32, "hiddenSize": 4096, "ffnHiddenSize": 14336, "numAttentionHeads": 32, "vocabSize": 32000,
    "numExperts": 8, "moeRouterTopk": 2,
}  # fmt: skip
LATENT = LLAMA | {
    "numQueryGroups": None, "multiLatentAttention": True, "qLoraRank": 1536, "kvLoraRank": 512,
    "qkHeadDim": 128, "qkPosEmbHeadDim": 64, "vHeadDim": 128, "qkLayernorm": True,
}  # fmt: skip


def model(sizes: dict[str, Any]) -> ModelShape:
    found = Diagnostics()
    built = model_shape(ModelSpec.model_validate(sizes), found)
    assert built is not None, found.errors
    return built


DIMS = ("tp", "cp", "dp", "ep", "etp", "vp")


def workload(sizes: dict[str, Any] | None = None, **changes: Any) -> Workload:
    """Llama 3 70B on TP 4, PP 4, DP 2 with these changes of dimensions or of the workload; PP from stages."""
    values: dict[str, Any] = {
        "shape": model(sizes or LLAMA), "seq_length": 4096, "micro_batch": 1, "micro_batches": 16,
        "stage_layers": (20,) * 4, "tp": 4, "dp": 2,
    } | changes  # fmt: skip
    dims = {name: values.pop(name) for name in DIMS if name in values}
    return Workload(dims=ParallelDims(pp=len(values["stage_layers"]), **dims), **values)


def mixtral(**changes: Any) -> Workload:
    whole: dict[str, Any] = {"tp": 1, "dp": 8, "stage_layers": (32,), "ep": 8}
    return workload(MIXTRAL, **(whole | changes))


def test_the_distributed_optimizer_splits_only_the_optimizer() -> None:
    split, whole = (states(workload(distributed_optimizer=on), 0) for on in (True, False))
    assert (split.weights, split.gradients) == (whole.weights, whole.gradients)
    assert split.optimizer == pytest.approx(whole.optimizer / 2)


def test_instances_of_the_distributed_optimizer_each_have_all_states() -> None:
    """With EP 4, two ranks have the same experts and share their states."""
    one, two = (mixtral(ep=4, optimizer_instances=count) for count in (1, 2))
    assert states(two, 0).optimizer == pytest.approx(2 * states(one, 0).optimizer)
    assert states(two, 0).weights == states(one, 0).weights
    off = [mixtral(distributed_optimizer=False, optimizer_instances=count) for count in (1, 2)]
    assert states(off[0], 0) == states(off[1], 0)


def test_context_parallel_ranks_share_the_optimizer_and_the_sequence() -> None:
    one, two = workload(), workload(cp=2)
    assert states(two, 0).optimizer == pytest.approx(states(one, 0).optimizer / 2)
    assert activations(two, 0) == pytest.approx(activations(one, 0) / 2)


def test_eighteen_bytes_a_parameter_without_any_splitting() -> None:
    w = workload(tp=1, dp=1, stage_layers=(80,))
    parameters = 70_553_706_496
    assert states(w, 0).total == pytest.approx(18 * parameters, rel=1e-3)


def test_experts_are_split_over_their_own_groups() -> None:
    near, far = mixtral(ep=8), mixtral(ep=4)
    assert states(far, 0).weights > 1.5 * states(near, 0).weights
    assert states(near, 0).optimizer == pytest.approx(states(far, 0).optimizer)


def test_sequence_parallelism_splits_what_tensor_parallelism_leaves_whole() -> None:
    assert activations(workload(), 0) < 0.6 * activations(workload(sequence_parallel=False), 0)


def test_at_tensor_parallel_one_sequence_parallelism_changes_nothing() -> None:
    one: dict[str, Any] = {"tp": 1, "dp": 8}
    assert activations(workload(**one), 0) == activations(workload(**one, sequence_parallel=False), 0)


def test_the_first_stage_holds_a_micro_batch_for_every_stage() -> None:
    full, few = workload(micro_batches=16), workload(micro_batches=2)
    assert activations(few, 0) == pytest.approx(activations(full, 0) / 2)


def test_interleaving_holds_more_by_megatrons_factor() -> None:
    plain, interleaved = workload(), workload(vp=5)
    assert activations(interleaved, 0) == pytest.approx(activations(plain, 0) * (1 + 3 / (4 * 5)))


def test_interleaving_holds_no_more_than_all_micro_batches() -> None:
    plain, interleaved = (workload(micro_batches=4, vp=vp) for vp in (1, 2))
    assert activations(interleaved, 0) == activations(plain, 0)


def test_only_the_last_stage_has_the_logits() -> None:
    w = workload(stage_layers=(80,), dp=8)
    bigger = dataclasses.replace(w, shape=dataclasses.replace(w.shape, vocab=2 * w.shape.vocab))
    logits = activations(bigger, 0) - activations(w, 0)
    assert logits == pytest.approx(4 * 4096 * 128256 / 4, rel=0.01)


def test_a_middle_stage_may_need_most_memory() -> None:
    even, uneven = workload(stage_layers=(20,) * 4), workload(stage_layers=(10, 30, 20, 20))
    fullest = memory_per_gpu(uneven, 80 * GIB)
    assert fullest.weights > 1.2 * memory_per_gpu(even, 80 * GIB).weights


def test_full_recomputation_keeps_the_inputs_of_layers() -> None:
    w = workload(recompute=Recomputation("full"), stage_layers=(80,), dp=8)
    inputs = 80 * 2 * 4096 * 8192 / 4
    one_layer = layer_bytes(w, DENSE)
    rest = activations(w, 0) - inputs - one_layer
    assert 0 < rest < 1.2 * (4 * 4096 * (8192 + 128256) / 4)


def test_recomputed_blocks_leave_the_other_layers_whole() -> None:
    few, all_of_them = (workload(recompute=Recomputation("full", "block", layers)) for layers in (5, 20))
    assert activations(all_of_them, 0) < activations(few, 0) < activations(workload(), 0)


def test_recomputed_modules_are_not_kept() -> None:
    for module, sizes in (("mla_up_proj", LATENT), ("layernorm", LLAMA), ("mlp", LLAMA)):
        recomputed = Recomputation("selective", modules=frozenset({module}))
        assert activations(workload(sizes, recompute=recomputed), 0) < activations(workload(sizes), 0)


UNFUSED = Execution(unfused_attention=True)
SCORES = 5 * 64 * 4096 * 4096 / 4
"""Bytes of the scores of one layer on TP 4."""


@pytest.mark.parametrize(
    ("recompute", "layers"),
    [
        (Recomputation(), 20 * 4),
        (Recomputation("selective", modules=frozenset({"layernorm", "mlp"})), 20 * 4),
        (Recomputation("selective"), 1),
        (Recomputation("selective", modules=frozenset({"core_attn", "mlp"})), 1),
        (Recomputation("full"), 1),
        (Recomputation("full", "block", 15), 5 * 4 + 1),
    ],
)
def test_scores_of_unfused_attention_are_kept_of_all_layers_that_do_not_recompute_it(
    recompute: Recomputation, layers: int
) -> None:
    """A stage has 20 layers for 4 micro batches; one layer has its scores while it is recomputed."""
    fused, unfused = (workload(recompute=recompute, execution=each) for each in (Execution(), UNFUSED))
    assert activations(unfused, 0) - activations(fused, 0) == pytest.approx(layers * SCORES)


def test_cheap_modules_are_not_taken_to_recompute_scores(resolve: Any) -> None:
    made = plan(resolve("qwen3-30b-a3b", 32, training={"attentionBackend": "unfused"}))
    assert made.recompute_granularity == "full"


def test_activations_of_experts_grow_with_topk() -> None:
    two, four = mixtral(), mixtral()
    four = dataclasses.replace(four, shape=dataclasses.replace(four.shape, topk=4))
    assert activations(four, 0) > 1.5 * activations(two, 0)


def test_fp8_halves_what_linear_layers_keep_and_adds_copies_of_weights() -> None:
    half, fp8 = workload(), workload(numerics=Numerics(fp8=True, fp8_copies=2))
    gathered = workload(numerics=Numerics(fp8=True))
    assert activations(fp8, 0) < activations(half, 0)
    assert states(fp8, 1).weights == pytest.approx(2 * states(half, 1).weights)
    assert states(gathered, 0).weights == states(half, 0).weights


AWARE_IN_FP8 = {"bf16": True, "usePrecisionAwareOptimizer": True, "fp8Format": "hybrid"}


@pytest.mark.parametrize(
    ("training", "args", "expected"),
    [
        ({"bf16": True}, {}, (2, 4, 12)),
        ({}, {}, (4, 4, 8)),
        ({"bf16": True, "optimizer": "sgd"}, {}, (2, 4, 8)),
        ({"bf16": True, "usePrecisionAwareOptimizer": True}, {}, (2, 4, 10)),
        (AWARE_IN_FP8 | {"fp8Recipe": "delayed"}, {}, (2, 4, 10)),
        (AWARE_IN_FP8 | {"fp8Recipe": "tensorwise"}, {}, (2, 4, 12)),
        (AWARE_IN_FP8 | {"fp8Recipe": "tensorwise"}, {"main-params-dtype": "fp16"}, (2, 4, 10)),
        (
            {"bf16": True, "usePrecisionAwareOptimizer": True},
            {"exp-avg-dtype": "bf16", "exp-avg-sq-dtype": "bf16", "main-grads-dtype": "bf16"},
            (2, 2, 6),
        ),
        ({"bf16": True}, {"exp-avg-dtype": "bf16"}, (2, 4, 12)),
        ({"bf16": True}, {"grad-reduce-in-bf16": True}, (2, 2, 12)),
    ],
)
def test_bytes_a_parameter_follow_optimizer_and_precision(
    training: dict[str, Any], args: dict[str, Any], expected: tuple[int, int, int]
) -> None:
    n = numerics(TrainingSpec.model_validate(training), args)
    assert (n.weight, n.gradient, n.optimizer) == expected


def test_interleaved_stages_alternate_in_the_moe_layers() -> None:
    kinds = (DENSE,) * 2 + (EXPERTS,) * 6

    def experts(stages: tuple[int, ...], virtual: int) -> list[int]:
        return [stage.get(EXPERTS, 0) for stage in kinds_of_stages(kinds, stages, virtual)]

    assert experts((4, 4), 1) == [2, 4]
    assert experts((4, 4), 2) == [2, 4]
    assert experts((4, 4), 4) == [3, 3]
    assert sum(experts((5, 3), 2)) == 6


def test_without_a_known_capacity_there_is_no_runtime_memory(resolve: Any) -> None:
    resolved = resolve("tiny-gpt", 2, "cpu")
    estimated = memory.estimate(resolved, plan(resolved))
    assert estimated.capacity is None
    assert estimated.other == 0
    assert estimated.weights > 0


def test_parts_add_up(resolve: Any) -> None:
    resolved = resolve("llama3-70b", 64)
    of = memory.estimate(resolved, plan(resolved))
    assert of.total == of.weights + of.gradients + of.optimizer + of.activations + of.other
    assert of.capacity is not None
    assert of.total < of.capacity


def test_query_groups_keep_fewer_keys_and_values() -> None:
    whole = workload(LLAMA | {"numQueryGroups": 64})
    assert activations(whole, 0) - activations(workload(), 0) == pytest.approx(
        2 * 2 * 56 * 128 * 4096 / 4 * 20 * 4, rel=1e-6
    )


def test_without_a_gate_the_first_product_is_half_as_wide() -> None:
    plain, gated = workload(LLAMA | {"swiglu": False}), workload()
    assert activations(gated, 0) - activations(plain, 0) == pytest.approx(
        2 * 28672 * 4096 / 4 * 20 * 4, rel=1e-6
    )


def test_without_dropout_there_are_no_masks() -> None:
    masks = activations(workload(), 0) - activations(workload(LLAMA | {"hiddenDropout": 0.0}), 0)
    assert masks == pytest.approx((2 * 20 + 1) * 8192 * 4096 / 4 * 4, rel=1e-6)


def test_activations_of_fp32_have_twice_the_bytes_of_bf16() -> None:
    wide = Numerics(weight=4, gradient=4, optimizer=8, gathered_weight=4)
    masks = 2 * 8192 * 4096 / 4
    assert layer_bytes(workload(numerics=wide), DENSE) == 2 * layer_bytes(workload(), DENSE) - masks
    plain, full = LLAMA | {"hiddenDropout": 0}, Recomputation("full")
    kept = activations(workload(plain, numerics=wide, recompute=full), 0)
    assert kept == pytest.approx(2 * activations(workload(plain, recompute=full), 0), rel=1e-3)


def test_16_bit_moments_need_fp32_copies_while_the_optimizer_steps() -> None:
    args = {"exp-avg-dtype": "bf16", "exp-avg-sq-dtype": "bf16"}
    training = TrainingSpec.model_validate({"bf16": True, "usePrecisionAwareOptimizer": True})
    small = mixtral(numerics=numerics(training, args), seq_length=128)
    need = memory_per_gpu(small, 80 * GIB)
    _, experts, _ = memory.held_parameters(small, 0)
    assert need.activations == int(8 * experts) > activations(small, 0)
    assert numerics(training, {}).step_copies == 0


def test_16_bit_gradients_are_copied_in_fp32_for_the_optimizers_step() -> None:
    """Those of experts and of the other parameters at once, before either optimizer steps."""
    small = mixtral(numerics=numerics(TrainingSpec(bf16=True), {"grad-reduce-in-bf16": True}), seq_length=128)
    layers, experts, vocabulary = memory.held_parameters(small, 0)
    need = memory_per_gpu(small, 80 * GIB)
    assert need.activations == int(4 * ((layers + vocabulary) / 8 + experts)) > activations(small, 0)


@pytest.mark.parametrize(
    ("training", "args"),
    [
        ({}, {}),
        ({"usePrecisionAwareOptimizer": True}, {"main-grads-dtype": "bf16"}),
        ({"usePrecisionAwareOptimizer": True}, {"grad-reduce-in-bf16": True}),
    ],
)
def test_fp32_gradients_and_those_of_the_precision_aware_optimizer_are_not_copied(
    training: dict[str, Any], args: dict[str, Any]
) -> None:
    assert numerics(TrainingSpec.model_validate({"bf16": True} | training), args).gradient_copies == 0


@pytest.mark.parametrize(("recipe", "copies"), [("delayed", 0), ("mxfp8", 4)])
def test_with_scales_of_the_present_values_the_precision_aware_optimizer_has_its_gradients_copied(
    recipe: str, copies: int
) -> None:
    training = TrainingSpec.model_validate(AWARE_IN_FP8 | {"fp8Recipe": recipe})
    assert numerics(training, {"main-grads-dtype": "bf16"}).gradient_copies == copies


OFFLOADED = {"optimizer-cpu-offload": True, "exp-avg-dtype": "bf16"}


def test_offloaded_states_are_in_the_memory_of_the_host_in_fp32_with_a_copy_of_the_gradients() -> None:
    training = TrainingSpec(bf16=True, use_precision_aware_optimizer=True)
    whole, half = (numerics(training, OFFLOADED | more) for more in ({}, {"optimizer-offload-fraction": 0.5}))
    assert (whole.optimizer, whole.host) == (0, 16)
    assert (half.optimizer, half.host) == (6, 8)
    found = workload(numerics=half)
    assert memory.host_bytes(found) == pytest.approx(
        8 / 6 * max(states(found, stage).optimizer for stage in range(4))
    )


def test_what_is_not_offloaded_has_fp32_gradients_on_the_gpu() -> None:
    training = TrainingSpec(bf16=True, use_precision_aware_optimizer=True)
    args = OFFLOADED | {"optimizer-offload-fraction": 0.5, "main-grads-dtype": "bf16"}
    assert numerics(training, args).optimizer == 8
    assert numerics(training, args | {"optimizer-offload-fraction": 1.0}).optimizer == 0


@pytest.mark.parametrize("fraction", ["half", [0.5, 0.5], "nan", 1.5, -1])
def test_a_fraction_that_is_refused_is_planned_as_megatrons_default(fraction: Any) -> None:
    training = TrainingSpec(bf16=True, use_precision_aware_optimizer=True)
    assert numerics(training, OFFLOADED | {"optimizer-offload-fraction": fraction}).host == 16
