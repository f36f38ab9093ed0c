"""Validation rules of `spec.parallelism`: settings that need or exclude each other."""

from typing import Final

from megatron_operator.api.cel import field, is_false, is_set, is_true
from megatron_operator.api.rule import Rule, rule

_FULL = field("recomputeGranularity", "").equals("full")
_SPLIT = ("decoderFirstPipelineNumLayers", "decoderLastPipelineNumLayers")
_ACCOUNT = is_true("accountForEmbeddingInPipelineSplit") | is_true("accountForLossInPipelineSplit")

PARALLELISM: Final[tuple[Rule, ...]] = (
    rule(
        "spec.parallelism",
        "recomputeMethod",
        ~_FULL | (is_set("recomputeMethod") & is_set("recomputeNumLayers")),
        "recomputeGranularity full needs recomputeMethod and recomputeNumLayers",
        "set both, for example uniform and 1",
    ),
    rule(
        "spec.parallelism",
        "recomputeMethod",
        _FULL | ~(is_set("recomputeMethod") | is_set("recomputeNumLayers")),
        "recomputeMethod and recomputeNumLayers apply only to recomputeGranularity full",
        "set recomputeGranularity: full, or leave both out",
    ),
    rule(
        "spec.parallelism",
        "overlapParamGather",
        ~is_true("overlapParamGather") | ~is_false("useDistributedOptimizer"),
        "needs useDistributedOptimizer, which is false",
        "set useDistributedOptimizer: true, or leave it out",
    ),
    rule(
        "spec.parallelism",
        "useMegatronFsdp",
        ~is_true("useMegatronFsdp") | ~is_false("useDistributedOptimizer"),
        "needs useDistributedOptimizer, which is false",
        "set useDistributedOptimizer: true, or leave it out",
    ),
    rule(
        "spec.parallelism",
        "useMegatronFsdp",
        ~is_true("useMegatronFsdp")
        | (field("pipelineModelParallelSize", 1).equals(1) & field("contextParallelSize", 1).equals(1)),
        "shards over data-parallel ranks, without pipeline stages and split sequences",
        "leave pipelineModelParallelSize and contextParallelSize out, or useMegatronFsdp",
    ),
    rule(
        "spec.parallelism",
        "overlapParamGather",
        ~is_true("overlapParamGather") | ~is_false("overlapGradReduce"),
        "needs overlapGradReduce, which is false",
        "set both or none",
    ),
    rule(
        "spec.parallelism",
        "tpCommOverlap",
        ~is_true("tpCommOverlap") | ~is_false("sequenceParallel"),
        "needs sequenceParallel, which is false",
        "set both or none",
    ),
    rule(
        "spec.parallelism",
        "sequenceParallel",
        ~is_true("sequenceParallel") | ~field("tensorModelParallelSize", 2).equals(1),
        "is true at TP 1, where Megatron silently disables it",
        "leave it out, or set tensorModelParallelSize above 1",
    ),
    rule(
        "spec.parallelism",
        "numVirtualStagesPerPipelineRank",
        field("numVirtualStagesPerPipelineRank", 1).equals(1)
        | ~field("pipelineModelParallelSize", 2).equals(1),
        "{} at PP 1: there are no pipeline stages to interleave",
        "leave it out, or set pipelineModelParallelSize above 1",
        field("numVirtualStagesPerPipelineRank", 1),
    ),
    rule(
        "spec.parallelism",
        "pipelineModelParallelLayout",
        ~is_set("pipelineModelParallelLayout")
        | ~(is_set(_SPLIT[0]) | is_set(_SPLIT[1]) | _ACCOUNT | is_set("numVirtualStagesPerPipelineRank")),
        "is set together with another setting of the pipeline split",
        "leave the others out",
    ),
    rule(
        "spec.parallelism",
        "accountForEmbeddingInPipelineSplit",
        ~_ACCOUNT | ~(is_set(_SPLIT[0]) | is_set(_SPLIT[1])),
        "the embedding or loss counts as a layer, but the layers of the first or last stage are set",
        "set either accountForEmbedding/LossInPipelineSplit or decoderFirst/LastPipelineNumLayers",
    ),
)
