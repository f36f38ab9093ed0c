"""Rules between fields that the API server itself can hold a recipe to.

Each is defined once: `crd` writes it as CEL into the CRD, `validation` evaluates it offline. What needs the
catalog, the platform or the planner is not here.
"""

from dataclasses import dataclass

from megatron_operator.api.cel import Expression, Text, at_most_one, field, off, on, said


@dataclass(frozen=True, slots=True)
class Rule:
    """`holds` must be true of the object at `at`; else `field` below it is reported."""

    at: str
    field: str
    holds: Expression
    message: Text
    fix: str

    @property
    def path(self) -> str:
        """Whole path of the reported field."""
        return f"{self.at}.{self.field}" if self.field else self.at

    @property
    def text(self) -> Text:
        """Message and mend as one text."""
        return Text(f"{self.message.words}; {self.fix}", self.message.numbers)


def _rule(at: str, name: str, holds: Expression, message: str, fix: str, *numbers: Expression) -> Rule:
    return Rule(at, name, holds, Text(message, numbers), fix)


def _exclusive(at: str, first: str, second: str, fix: str) -> Rule:
    return _rule(at, second, at_most_one(first, second), f"is set together with {first}", fix)


_COUNT = field("accelerator.count", 1)
_PER_NODE = field("accelerator.perNode", 1)
_MIN_COUNT = field("recovery.elastic.minCount", 1)
_TP = field("parallelism.tensorModelParallelSize", 1)
_PP = field("parallelism.pipelineModelParallelSize", 1)
_CP = field("parallelism.contextParallelSize", 1)
_EP = field("parallelism.expertModelParallelSize", 1)
_HEADS = field("model.numAttentionHeads", 0)
_SEQ = field("training.seqLength", 0)


_SPEC = (
    _rule(
        "spec",
        "recipe",
        said("recipe") | (said("model") & said("training")),
        "is missing, and so is model or training",
        "name a catalog entry (megatron recipes list), or give model and training in full",
    ),
    _rule(
        "spec",
        "data",
        said("data"),
        "there is nothing to train on",
        "give data.blend with data.volume, data.prepare for text to be tokenized, or data.mockData: true",
    ),
    _rule(
        "spec",
        "parallelism",
        (_COUNT % (_TP * _PP * _CP)).equals(0),
        "TP {} x PP {} x CP {} does not divide accelerator.count {}",
        "set sizes whose product divides the count",
        _TP,
        _PP,
        _CP,
        _COUNT,
    ),
    _rule(
        "spec",
        "parallelism.tensorModelParallelSize",
        ~said("accelerator.perNode") | (_PER_NODE >= _TP) | (_TP % _PER_NODE).equals(0),
        "{} is above accelerator.perNode {} and no multiple of it: a TP group would take a part of a node",
        "set at most perNode",
        _TP,
        _PER_NODE,
    ),
    _rule(
        "spec",
        "parallelism.tensorModelParallelSize",
        (_HEADS % _TP).equals(0),
        "{} does not divide model.numAttentionHeads {}",
        "set a divisor of the heads",
        _TP,
        _HEADS,
    ),
    _rule(
        "spec",
        "parallelism.expertModelParallelSize",
        (field("model.numExperts", 0) % _EP).equals(0),
        "{} does not divide model.numExperts {}",
        "set a divisor of the experts",
        _EP,
        field("model.numExperts", 0),
    ),
    _rule(
        "spec",
        "parallelism.contextParallelSize",
        _CP.equals(1) | (_SEQ % (_CP * 2)).equals(0),
        "training.seqLength {} is not divisible by 2 x CP {}",
        "set a CP of which twice divides the sequence",
        _SEQ,
        _CP,
    ),
    _rule(
        "spec",
        "training.seqLength",
        ~said("model.maxPositionEmbeddings") | (field("model.maxPositionEmbeddings", 1) >= _SEQ),
        "{} is more than model.maxPositionEmbeddings {}",
        "set it to at most that, or raise maxPositionEmbeddings",
        _SEQ,
        field("model.maxPositionEmbeddings", 1),
    ),
    _rule(
        "spec",
        "recovery.elastic.minCount",
        _MIN_COUNT <= _COUNT,
        "{} is above accelerator.count {}",
        "set at most the count",
        _MIN_COUNT,
        _COUNT,
    ),
    _rule(
        "spec",
        "recovery.elastic.minCount",
        (_MIN_COUNT <= _PER_NODE) | (_MIN_COUNT % _PER_NODE).equals(0),
        "{} is not a multiple of accelerator.perNode {}: a run takes whole nodes",
        "set a multiple of it",
        _MIN_COUNT,
        _PER_NODE,
    ),
)

_ACCELERATOR = (
    _rule(
        "spec.accelerator",
        "count",
        (field("count", 1) < field("perNode", 1)) | (field("count", 1) % field("perNode", 1)).equals(0),
        "{} is not a multiple of perNode {}",
        "set a multiple of it",
        field("count", 1),
        field("perNode", 1),
    ),
)

_MODEL = (
    _rule(
        "spec.model",
        "numQueryGroups",
        ~said("numAttentionHeads") | (field("numAttentionHeads", 1) % field("numQueryGroups", 1)).equals(0),
        "{} does not divide numAttentionHeads {}",
        "set a divisor of the heads",
        field("numQueryGroups", 1),
        field("numAttentionHeads", 1),
    ),
    _rule(
        "spec.model",
        "hiddenSize",
        said("kvChannels")
        | ~said("hiddenSize")
        | (field("hiddenSize", 0) % field("numAttentionHeads", 1)).equals(0),
        "{} is not divisible by numAttentionHeads {}",
        "set kvChannels, or a multiple of the heads",
        field("hiddenSize", 0),
        field("numAttentionHeads", 1),
    ),
    _rule(
        "spec.model",
        "squaredRelu",
        ~(on("squaredRelu") & on("swiglu")),
        "is set together with swiglu",
        "set one of the two",
    ),
    _rule(
        "spec.model",
        "moeRouterTopk",
        ~said("numExperts") | (field("moeRouterTopk", 1) <= field("numExperts", 1)),
        "{} is above numExperts {}",
        "set at most that",
        field("moeRouterTopk", 1),
        field("numExperts", 1),
    ),
    _rule(
        "spec.model",
        "moeRouterGroupTopk",
        ~said("moeRouterNumGroups") | (field("moeRouterGroupTopk", 1) <= field("moeRouterNumGroups", 1)),
        "{} is above moeRouterNumGroups {}",
        "set at most that",
        field("moeRouterGroupTopk", 1),
        field("moeRouterNumGroups", 1),
    ),
    _rule(
        "spec.model",
        "ropeScalingFactor",
        ~said("ropeScalingFactor") | ~off("useRopeScaling"),
        "is set, but useRopeScaling is false",
        "set useRopeScaling: true, or leave it out",
    ),
)

_TRAINING = (
    _rule(
        "spec.training",
        "trainTokens",
        at_most_one("trainIters", "trainSamples", "trainTokens"),
        "the run's length is said more than once",
        "keep one of trainTokens, trainIters and trainSamples",
    ),
    _exclusive("spec.training", "globalBatchSize", "stepBatchSizeSchedule", "set one of the two"),
    _rule(
        "spec.training", "fp16", ~(on("bf16") & on("fp16")), "is set together with bf16", "set one of the two"
    ),
    _rule(
        "spec.training",
        "fp8Format",
        ~said("fp8Format") | ~off("bf16"),
        "is set, but bf16 is false: parameters would be FP32",
        "set bf16: true",
    ),
    _rule(
        "spec.training",
        "lrWarmupFraction",
        at_most_one("lrWarmupFraction", "lrWarmupIters", "lrWarmupSamples"),
        "the warm-up is said more than once",
        "keep one of lrWarmupFraction, lrWarmupIters and lrWarmupSamples",
    ),
    _rule(
        "spec.training",
        "lrWarmupSamples",
        ~(said("trainIters") & (said("lrWarmupSamples") | said("lrDecaySamples"))),
        "samples are mixed with trainIters",
        "set lrWarmupIters and lrDecayIters, or trainSamples",
    ),
    _rule(
        "spec.training",
        "lrWarmupIters",
        ~(said("trainSamples") & (said("lrWarmupIters") | said("lrDecayIters"))),
        "iterations are mixed with trainSamples",
        "set lrWarmupSamples and lrDecaySamples, or trainIters",
    ),
    _rule(
        "spec.training",
        "lrWarmupIters",
        ~said("trainIters") | said("lrDecayIters") | (field("lrWarmupIters", 0) < field("trainIters", 1)),
        "{} is not below trainIters {}",
        "set less, or a longer run",
        field("lrWarmupIters", 0),
        field("trainIters", 1),
    ),
    _rule(
        "spec.training",
        "minLr",
        ~said("lr") | ~said("minLr") | (field("minLr", 0.0) <= field("lr", 0.0)),
        "is above lr",
        "set at most lr",
    ),
    _rule(
        "spec.training",
        "globalBatchSize",
        ~said("globalBatchSize") | (field("globalBatchSize", 1) % field("microBatchSize", 1)).equals(0),
        "{} is not divisible by microBatchSize {}",
        "set a multiple of microBatchSize x DP",
        field("globalBatchSize", 1),
        field("microBatchSize", 1),
    ),
)

_FULL = field("recomputeGranularity", "").equals("full")
_SPLIT = ("decoderFirstPipelineNumLayers", "decoderLastPipelineNumLayers")
_ACCOUNT = on("accountForEmbeddingInPipelineSplit") | on("accountForLossInPipelineSplit")

_PARALLELISM = (
    _rule(
        "spec.parallelism",
        "recomputeMethod",
        ~_FULL | (said("recomputeMethod") & said("recomputeNumLayers")),
        "recomputeGranularity full needs recomputeMethod and recomputeNumLayers",
        "set both, for example uniform and 1",
    ),
    _rule(
        "spec.parallelism",
        "recomputeMethod",
        _FULL | ~(said("recomputeMethod") | said("recomputeNumLayers")),
        "recomputeMethod and recomputeNumLayers go with recomputeGranularity full alone",
        "set recomputeGranularity: full, or leave both out",
    ),
    _rule(
        "spec.parallelism",
        "overlapParamGather",
        ~on("overlapParamGather") | ~off("useDistributedOptimizer"),
        "needs useDistributedOptimizer, which is false",
        "set useDistributedOptimizer: true, or leave it out",
    ),
    _rule(
        "spec.parallelism",
        "overlapParamGather",
        ~on("overlapParamGather") | ~off("overlapGradReduce"),
        "needs overlapGradReduce, which is false",
        "set both or none",
    ),
    _rule(
        "spec.parallelism",
        "tpCommOverlap",
        ~on("tpCommOverlap") | ~off("sequenceParallel"),
        "needs sequenceParallel, which is false",
        "set both or none",
    ),
    _rule(
        "spec.parallelism",
        "sequenceParallel",
        ~on("sequenceParallel") | ~field("tensorModelParallelSize", 2).equals(1),
        "true at TP 1, where Megatron switches it off silently",
        "leave it out, or set tensorModelParallelSize above 1",
    ),
    _rule(
        "spec.parallelism",
        "numVirtualStagesPerPipelineRank",
        field("numVirtualStagesPerPipelineRank", 1).equals(1)
        | ~field("pipelineModelParallelSize", 2).equals(1),
        "{} at PP 1: there are no stages to interleave",
        "leave it out, or set pipelineModelParallelSize above 1",
        field("numVirtualStagesPerPipelineRank", 1),
    ),
    _rule(
        "spec.parallelism",
        "pipelineModelParallelLayout",
        ~said("pipelineModelParallelLayout")
        | ~(said(_SPLIT[0]) | said(_SPLIT[1]) | _ACCOUNT | said("numVirtualStagesPerPipelineRank")),
        "is set together with another setting of the stage split",
        "leave the others out",
    ),
    _rule(
        "spec.parallelism",
        "accountForEmbeddingInPipelineSplit",
        ~_ACCOUNT | ~(said(_SPLIT[0]) | said(_SPLIT[1])),
        "embedding or loss is counted in the split together with layers of the first or last stage",
        "set either accountForEmbedding/LossInPipelineSplit or decoderFirst/LastPipelineNumLayers",
    ),
)


def _volume(at: str) -> tuple[Rule, ...]:
    return (
        _exclusive(at, "claimName", "size", "set claimName for an existing claim, or size for a new one"),
        _exclusive(at, "claimName", "storageClassName", "leave it out: the existing claim has its class"),
    )


_DATA = (
    _rule(
        "spec.data",
        "blend",
        at_most_one("blend", "prepare", "mockData"),
        "the data is said more than once",
        "keep one of blend, prepare and mockData",
    ),
    _rule(
        "spec.data",
        "volume",
        said("volume") | ~(said("blend") | said("prepare")),
        "no volume has the datasets",
        "set data.volume.claimName, or data.volume.size for a claim to be made",
    ),
)

RULES: tuple[Rule, ...] = (
    *_SPEC,
    *_ACCELERATOR,
    *_MODEL,
    *_TRAINING,
    *_PARALLELISM,
    *_DATA,
    *_volume("spec.data.volume"),
    *_volume("spec.checkpoint.volume"),
)
