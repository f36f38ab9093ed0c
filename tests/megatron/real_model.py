"""Megatron's real GPTModel of an argument list, unsharded, on the meta device: sizes without memory."""

import operator
from dataclasses import astuple, dataclass
from typing import Any

import torch
from effects import flags, without
from megatron.core.models import backends
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer.dot_product_attention import DotProductAttention
from megatron.training.models.gpt import GPTModelBuilder
from stages import Megatron

SPLIT = {
    "--tensor-model-parallel-size",
    "--pipeline-model-parallel-size",
    "--context-parallel-size",
    "--cp-comm-type",
    "--expert-model-parallel-size",
    "--expert-tensor-parallel-size",
    "--sequence-parallel",
    "--num-virtual-stages-per-pipeline-rank",
    "--decoder-first-pipeline-num-layers",
    "--decoder-last-pipeline-num-layers",
    "--account-for-embedding-in-pipeline-split",
    "--account-for-loss-in-pipeline-split",
    "--pipeline-model-parallel-layout",
    "--tp-comm-overlap",
    "--recompute-granularity",
    "--recompute-method",
    "--recompute-num-layers",
    "--recompute-modules",
}
_NEEDS_TRANSFORMER_ENGINE = {
    "--transformer-impl",
    "--attention-backend",
    "--apply-layernorm-1p",
    "--moe-grouped-gemm",
    "--moe-permute-fusion",
    "--moe-shared-expert-overlap",
    "--moe-token-dispatcher-type",
}
_PLAIN = [
    "--transformer-impl",
    "local",
    "--no-rope-fusion",
    "--no-masked-softmax-fusion",
    "--no-persist-layer-norm",
    "--no-gradient-accumulation-fusion",
    "--use-cpu-initialization",
]


class _AttentionWithoutTransformerEngine(DotProductAttention):  # type: ignore[misc]
    """Megatron's local attention, which has no parameters, given the widths that latent attention gives."""

    def __init__(self, *args: Any, k_channels: Any = None, v_channels: Any = None, **kwargs: Any) -> None:
        del k_channels, v_channels
        super().__init__(*args, **kwargs)


backends.DotProductAttention = _AttentionWithoutTransformerEngine


@dataclass(frozen=True)
class Sizes:
    """Parameters, and those that one token meets; multi-token prediction apart."""

    total: int
    active: int
    prediction: int
    active_prediction: int

    def __add__(self, other: "Sizes") -> "Sizes":
        return Sizes(*map(operator.add, astuple(self), astuple(other)))

    def __sub__(self, other: "Sizes") -> "Sizes":
        return Sizes(*map(operator.sub, astuple(self), astuple(other)))

    def __mul__(self, times: int) -> "Sizes":
        return Sizes(*(value * times for value in astuple(self)))


_MANY_EXPERTS = 1000
"""From this number of experts in all layers, the model is built with one and with two MoE layers instead:
the others are like these, and building tens of thousands of experts takes minutes."""


def sizes(megatron: Megatron, words: list[str]) -> Sizes:
    """Parameters of the model that these words describe, whatever they are split over."""
    experts = _experts_of_layers(megatron, words)
    dense, moe = experts.count(0), len(experts) - experts.count(0)
    if sum(experts) < _MANY_EXPERTS:
        return _built(megatron, words)
    one, two = (_built(megatron, _with_layers(words, dense, count)) for count in (1, 2))
    return one + (two - one) * (moe - 1)


def _experts_of_layers(megatron: Megatron, words: list[str]) -> list[int]:
    """Experts of each layer; 0 for a dense one."""
    config = megatron.start(_whole(words), 1).model.transformer
    layers, experts, pattern = config.num_layers, config.num_moe_experts or 0, config.moe_layer_freq
    if isinstance(pattern, int):
        pattern = [int(layer % pattern == 0) for layer in range(layers)]
    return [experts * is_moe for is_moe in pattern]


def _with_layers(words: list[str], dense: int, moe: int) -> list[str]:
    fewer = without(without(words, "--num-layers"), "--moe-layer-freq")
    layers = [str(dense + moe), "--moe-layer-freq", f"([0]*{dense}+[1]*{moe})"]
    return [*fewer, "--num-layers", *layers]


def _whole(words: list[str]) -> list[str]:
    """The words of the same model on one rank with Megatron's local layers."""
    dropped = SPLIT | _NEEDS_TRANSFORMER_ENGINE | set(_PLAIN)
    kept = [group for group in flags(words) if group[0] not in dropped and not group[0].startswith("--fp8")]
    return [*(word for group in kept for word in group), *_PLAIN]


def _built(megatron: Megatron, words: list[str]) -> Sizes:
    started = megatron.start(_whole(words), 1, keep_groups=True)
    config = started.model
    config.transformer.perform_initialization = False
    with torch.device("meta"):
        groups = ProcessGroupCollection.use_mpu_process_groups()
        model: Any = GPTModelBuilder(config).build_model(groups, pre_process=True, post_process=True)
    count = {(False, False): 0, (False, True): 0, (True, False): 0, (True, True): 0}
    for name, parameter in model.named_parameters():
        count[name.startswith("mtp."), ".experts." in name] += parameter.numel()
    experts, chosen = started.args.num_experts or 1, started.args.moe_router_topk
    return Sizes(
        total=count[False, False] + count[False, True],
        active=count[False, False] + count[False, True] // experts * chosen,
        prediction=count[True, False] + count[True, True],
        active_prediction=count[True, False] + count[True, True] // experts * chosen,
    )
