"""The planner's memory is within 5 % of Megatron's own estimate, for everything that it covers.

`theoretical_memory_usage.py` takes BF16 weights, FP32 gradients and Adam for granted, stages of equal size,
one dense feed-forward width in all activations, two products in a quick-GEGLU layer that has three, and no
context parallelism. For activations it takes the layers of a GPT for granted: dropout, as many groups as
heads, whose width is the hidden size, and one product before the activation. What a plan has beyond that is
left out; context parallelism is given to Megatron as a shorter sequence and more copies.
"""

import argparse
import dataclasses
from functools import cache
from typing import Any

import cases
import pytest
import yaml
from megatron.training import theoretical_memory_usage as theirs
from megatron_operator import catalog
from megatron_operator.api.recipe import MegatronRecipeSpec
from megatron_operator.planner import megatron_arguments, plan
from megatron_operator.planner.estimate import memory
from megatron_operator.planner.estimate.workload import Numerics, Workload
from stages import Megatron

WITH_EXPERTS = yaml.safe_load("""
  bf16: &training {seqLength: 4096, globalBatchSize: 1024, lr: 1.0e-4, trainIters: 1000, bf16: true}
  llama: &llama
    {maxPositionEmbeddings: 4096, positionEmbeddingType: rope, normalization: RMSNorm, swiglu: true,
     disableBiasLinear: true, untieEmbeddingsAndOutputWeights: true, moeTokenDispatcherType: alltoall,
     moeGroupedGemm: true, moeRouterLoadBalancingType: aux_loss, moeAuxLossCoeff: 0.01}
  mixtral:
    training: *training
    data: {mockData: true}
    model:
      <<: *llama
      numLayers: 32
      hiddenSize: 4096
      ffnHiddenSize: 14336
      numAttentionHeads: 32
      numQueryGroups: 8
      vocabSize: 32000
      numExperts: 8
      moeRouterTopk: 2
  latent:
    training: *training
    data: {mockData: true}
    model:
      <<: *llama
      numLayers: 60
      hiddenSize: 5120
      ffnHiddenSize: 12288
      numAttentionHeads: 128
      vocabSize: 102400
      multiLatentAttention: true
      qLoraRank: 1536
      kvLoraRank: 512
      qkHeadDim: 128
      qkPosEmbHeadDim: 64
      vHeadDim: 128
      qkLayernorm: true
      ropeType: rope
      noRopeFusion: true
      numExperts: 160
      moeRouterTopk: 6
      moeFfnHiddenSize: 1536
      moeSharedExpertIntermediateSize: 3072
""")


def _layout(recipe: str, count: int, **parallelism: Any) -> dict[str, Any]:
    return {
        "recipe": recipe,
        "accelerator": {"type": "h200", "count": count},
        "parallelism": parallelism,
        "data": {"mockData": True},
    }


def _experts(model: str, count: int, **parallelism: Any) -> dict[str, Any]:
    return WITH_EXPERTS[model] | {"accelerator": {"type": "h200", "count": count}, "parallelism": parallelism}


TP, PP, VP = "tensorModelParallelSize", "pipelineModelParallelSize", "numVirtualStagesPerPipelineRank"
CP, EP, ETP = "contextParallelSize", "expertModelParallelSize", "expertTensorParallelSize"
LAYOUTS: dict[str, dict[str, Any]] = {
    "tensor": _layout("llama3-8b", 8, **{TP: 8}),
    "tensor without sequence parallelism": _layout("gpt3-13b", 8, **{TP: 4}, sequenceParallel=False),
    "stages": _layout("llama3-70b", 64, **{TP: 8, PP: 4}),
    "interleaved": _layout("llama3-70b", 64, **{TP: 4, PP: 4, VP: 5}),
    "fewer micro batches than stages": _layout("llama3-70b", 1024, **{TP: 1, PP: 4})
    | {"training": {"globalBatchSize": 256}},
    "context": _layout("llama3-8b", 16, **{TP: 2, CP: 4}),
    "no distributed optimizer": _layout(
        "gpt3-1.3b", 8, **{TP: 2}, useDistributedOptimizer=False, overlapParamGather=False
    ),
    "experts": _experts("mixtral", 64, **{TP: 1, PP: 4, EP: 8}),
    "experts split twice": _experts("mixtral", 64, **{TP: 4, PP: 2, EP: 4, ETP: 2}),
    "latent attention": _experts("latent", 256, **{TP: 2, PP: 4, EP: 32, ETP: 1}),
}
ALL = cases.specs() | LAYOUTS


@cache
def case(name: str) -> cases.Case:
    if name not in LAYOUTS:
        return cases.case(name)
    spec = MegatronRecipeSpec.model_validate(LAYOUTS[name])
    resolved = catalog.resolve(spec, cases._platform(), catalog.load())
    planned = plan(resolved)
    return cases.Case(name, resolved, planned, megatron_arguments(resolved, planned, "run"))


def workload(name: str) -> Workload:
    """The plan's workload with the bytes per parameter and the products that Megatron's estimate assumes."""
    w = Workload.of(case(name).resolved, case(name).plan)
    shape = dataclasses.replace(w.shape, gated=w.shape.gated and not w.shape.quick_geglu)
    return dataclasses.replace(w, shape=shape, numerics=Numerics())


def arguments(megatron: Megatron, name: str) -> argparse.Namespace:
    """Megatron's own arguments; context parallelism as a shorter sequence and more copies."""
    args = megatron.start(case(name).words, case(name).world_size).args
    args.data_parallel_size *= args.context_parallel_size
    args.seq_length //= args.context_parallel_size
    return args


def of_equal_stages(name: str) -> bool:
    """Megatron's estimate takes the stages to be alike: a dense layer is a small part of the first.

    It does not know of FSDP.
    """
    planned, kinds = case(name).plan, workload(name).shape.kinds
    dense = sum(kind.feed_forward == "dense" for kind in kinds)
    few = dense == len(kinds) or dense / planned.stage_layers[0] - dense / len(kinds) < 1 / 16
    known = not case(name).resolved.model.mtp_num_layers and not planned.use_megatron_fsdp
    return len(set(planned.stage_layers)) == 1 and few and known


def kept_as_megatron_counts(name: str) -> bool:
    w = workload(name)
    return (
        of_equal_stages(name)
        and not w.shape.is_moe
        and w.shape.latent is None
        and w.recompute.granularity != "full"
    )


@pytest.mark.parametrize("name", [*filter(of_equal_stages, ALL)])
def test_weights_gradients_and_optimizer_agree(megatron: Megatron, name: str) -> None:
    args = arguments(megatron, name)
    assert memory.states(workload(name), 0).total == pytest.approx(
        theirs.compute_weight_and_optimizer_memory(args), rel=0.05
    )


@pytest.mark.parametrize("name", [*filter(kept_as_megatron_counts, ALL)])
def test_activations_agree(megatron: Megatron, name: str) -> None:
    args, w = arguments(megatron, name), workload(name)
    unfused = dataclasses.replace(w.execution, unfused_attention=False)
    gpt = dataclasses.replace(
        w.shape,
        groups=w.shape.heads,
        head_dim=w.shape.hidden / w.shape.heads,
        gated=False,
        qk_norm=False,
        dropout=True,
    )
    estimate = (
        theirs.compute_activation_memory if w.split_sequence else theirs.compute_activation_memory_without_sp
    )
    ours = memory.activations(dataclasses.replace(w, shape=gpt, execution=unfused), 0)
    assert ours == pytest.approx(estimate(args, w.micro_batches), rel=0.05)


def test_the_comparison_covers_layouts_of_every_kind() -> None:
    compared = [workload(name) for name in filter(of_equal_stages, ALL)]
    for kind, there in {
        "tensor parallel": any(w.dims.tp > 1 for w in compared),
        "pipeline stages": any(w.dims.pp > 1 and w.dims.vp == 1 for w in compared),
        "interleaved": any(w.dims.vp > 1 for w in compared),
        "context parallel": any(w.dims.cp > 1 for w in compared),
        "experts": any(w.dims.ep > 1 and w.dims.etp > 1 for w in compared),
        "latent attention": any(w.shape.latent for w in compared),
        "whole optimizer": any(not w.distributed_optimizer for w in compared),
    }.items():
        assert there, f"no case is {kind}"
