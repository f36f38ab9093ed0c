"""Validation rules across fields that the API server itself enforces.

Each is defined once: `crd` writes it into the CRD as CEL, `validation` evaluates it offline. Rules that need
the catalog, the platform or the planner are not here.
"""

from megatron_operator.api.cel import (
    exactly_one,
    field,
    is_false,
    is_set,
    is_true,
)
from megatron_operator.api.parallelism_rules import PARALLELISM
from megatron_operator.api.rule import Rule, exclusive, rule
from megatron_operator.api.training_rules import TRAINING

_COUNT = field("accelerator.count", 1)
_PER_NODE = field("accelerator.perNode", 1)
_PROFILE_START = field("profile.start", 1)
_PROFILE_END = field("profile.end", 1)
_MIN_COUNT = field("recovery.elastic.minCount", 1)
_TP = field("parallelism.tensorModelParallelSize", 1)
_PP = field("parallelism.pipelineModelParallelSize", 1)
_CP = field("parallelism.contextParallelSize", 1)
_EP = field("parallelism.expertModelParallelSize", 1)
_HEADS = field("model.numAttentionHeads", 0)
_SEQ = field("training.seqLength", 0)


_SPEC = (
    rule(
        "spec",
        "recipe",
        is_set("recipe") | (is_set("model") & is_set("training")),
        "is required unless model and training are both set",
        "name a catalog entry (megatron recipes list), or set model and training in full",
    ),
    rule(
        "spec",
        "data",
        is_set("data"),
        "is required",
        "set data.sources or data.blend, with data.volume, data.prepare for a text folder, "
        "or data.mockData: true",
    ),
    rule(
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
    rule(
        "spec",
        "parallelism.tensorModelParallelSize",
        ~is_set("accelerator.perNode") | (_PER_NODE >= _TP) | (_TP % _PER_NODE).equals(0),
        "{} is above accelerator.perNode {} and not a multiple of it: a TP group would use part of a node",
        "set at most perNode",
        _TP,
        _PER_NODE,
    ),
    rule(
        "spec",
        "parallelism.tensorModelParallelSize",
        (_HEADS % _TP).equals(0),
        "{} does not divide model.numAttentionHeads {}",
        "set a divisor of the number of heads",
        _TP,
        _HEADS,
    ),
    rule(
        "spec",
        "parallelism.expertModelParallelSize",
        (field("model.numExperts", 0) % _EP).equals(0),
        "{} does not divide model.numExperts {}",
        "set a divisor of the number of experts",
        _EP,
        field("model.numExperts", 0),
    ),
    rule(
        "spec",
        "parallelism.contextParallelSize",
        _CP.equals(1) | (_SEQ % (_CP * 2)).equals(0),
        "training.seqLength {} is not divisible by 2 x CP {}",
        "set a CP so that 2 x CP divides seqLength",
        _SEQ,
        _CP,
    ),
    rule(
        "spec",
        "training.seqLength",
        ~is_set("model.maxPositionEmbeddings") | (field("model.maxPositionEmbeddings", 1) >= _SEQ),
        "{} is above model.maxPositionEmbeddings {}",
        "set at most that, or raise maxPositionEmbeddings",
        _SEQ,
        field("model.maxPositionEmbeddings", 1),
    ),
    rule(
        "spec",
        "profile.end",
        ~is_set("profile") | (_PROFILE_END >= _PROFILE_START),
        "{} is below profile.start {}",
        "set at least the start",
        _PROFILE_END,
        _PROFILE_START,
    ),
    rule(
        "spec",
        "recovery.elastic.minCount",
        ~is_set("recovery.elastic.minCount") | (_MIN_COUNT <= _COUNT),
        "{} is above accelerator.count {}",
        "set at most the count",
        _MIN_COUNT,
        _COUNT,
    ),
    rule(
        "spec",
        "recovery.elastic.minCount",
        (_MIN_COUNT <= _PER_NODE) | (_MIN_COUNT % _PER_NODE).equals(0),
        "{} is not a multiple of accelerator.perNode {}: a run uses whole nodes",
        "set a multiple of it",
        _MIN_COUNT,
        _PER_NODE,
    ),
)

_ACCELERATOR = (
    rule(
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
    rule(
        "spec.model",
        "numQueryGroups",
        ~is_set("numAttentionHeads") | (field("numAttentionHeads", 1) % field("numQueryGroups", 1)).equals(0),
        "{} does not divide numAttentionHeads {}",
        "set a divisor of the number of heads",
        field("numQueryGroups", 1),
        field("numAttentionHeads", 1),
    ),
    rule(
        "spec.model",
        "hiddenSize",
        is_set("kvChannels")
        | ~is_set("hiddenSize")
        | (field("hiddenSize", 0) % field("numAttentionHeads", 1)).equals(0),
        "{} is not divisible by numAttentionHeads {}",
        "set kvChannels, or a multiple of the heads",
        field("hiddenSize", 0),
        field("numAttentionHeads", 1),
    ),
    rule(
        "spec.model",
        "squaredRelu",
        ~(is_true("squaredRelu") & is_true("swiglu")),
        "is set together with swiglu",
        "set one of the two",
    ),
    rule(
        "spec.model",
        "moeRouterTopk",
        ~is_set("numExperts") | (field("moeRouterTopk", 1) <= field("numExperts", 1)),
        "{} is above numExperts {}",
        "set at most that",
        field("moeRouterTopk", 1),
        field("numExperts", 1),
    ),
    rule(
        "spec.model",
        "moeRouterGroupTopk",
        ~is_set("moeRouterNumGroups") | (field("moeRouterGroupTopk", 1) <= field("moeRouterNumGroups", 1)),
        "{} is above moeRouterNumGroups {}",
        "set at most that",
        field("moeRouterGroupTopk", 1),
        field("moeRouterNumGroups", 1),
    ),
    rule(
        "spec.model",
        "ropeScalingFactor",
        ~is_set("ropeScalingFactor") | ~is_false("useRopeScaling"),
        "is set, but useRopeScaling is false",
        "set useRopeScaling: true, or leave it out",
    ),
)


def _volume(at: str) -> tuple[Rule, ...]:
    return (
        exclusive(at, "claimName", "size", "set claimName for an existing claim, or size for a new one"),
        exclusive(at, "claimName", "storageClassName", "leave it out: an existing claim keeps its class"),
    )


_SOURCES = (
    ("blend", "mockData"),
    ("datasetRoot", "mockData"),
    ("prepare", "mockData"),
    ("sources", "mockData"),
    ("blend", "datasetRoot"),
    ("blend", "prepare"),
    ("blend", "sources"),
    ("prepare", "datasetRoot"),
    ("sources", "datasetRoot"),
)
"""Pairs of which one is set: all but `prepare` with `sources`, which it prepares."""

_DATA = (
    *(exclusive("spec.data", *pair, "keep one of the two: each is a source of data") for pair in _SOURCES),
    rule(
        "spec.data",
        "examples",
        ~is_set("examples") | is_set("datasetRoot"),
        "has no effect without datasetRoot",
        "leave it out, or set datasetRoot; data.sources name their format themselves",
    ),
    rule(
        "spec.data",
        "packing",
        ~is_set("packing") | is_set("datasetRoot") | is_set("sources"),
        "has no effect without datasetRoot or sources",
        "leave it out, or set datasetRoot or sources",
    ),
    rule(
        "spec.data",
        "prepare",
        ~is_set("prepare") | exactly_one("sources", "prepare.source"),
        "has not exactly one thing to prepare",
        "set either data.sources or data.prepare.source",
    ),
    rule(
        "spec.data",
        "volume",
        is_set("volume") | ~(is_set("blend") | is_set("prepare") | is_set("sources") | is_set("datasetRoot")),
        "no volume is set for the datasets",
        "set data.volume.claimName to the claim that has them, "
        "or data.volume.size for a new one to prepare them on",
    ),
)

_WEIGHTS = (
    rule(
        "spec.init.from",
        "",
        exactly_one("huggingFace", "megatron", "recipe"),
        "has not exactly one source of weights",
        "set one of huggingFace, megatron.path and recipe",
    ),
    rule(
        "spec.init.from.huggingFace",
        "",
        exactly_one("path", "name"),
        "has not exactly one model",
        "set either path, a folder of a volume, or name, a name on a hub",
    ),
    rule(
        "spec.init.from.huggingFace",
        "revision",
        ~is_set("revision") | is_set("name"),
        "has no effect without name",
        "leave it out, or name a model on a hub",
    ),
    rule(
        "spec.init.from.huggingFace",
        "secretKeyRef",
        ~is_set("secretKeyRef") | is_set("name"),
        "has no effect without name",
        "leave it out, or name a model on a hub",
    ),
    rule(
        "spec",
        "checkpoint.volume.claimName",
        ~is_set("init.from.recipe") | is_set("checkpoint.volume.claimName"),
        "is not set, and init.from.recipe is read from the claim of the checkpoints",
        "name the claim on which that recipe keeps its checkpoints",
    ),
)

_ENVIRONMENT = (
    rule(
        "spec.envValueFrom{}",
        "",
        exactly_one("secretKeyRef", "configMapKeyRef", "fieldRef"),
        "has not exactly one source",
        "set one of secretKeyRef, configMapKeyRef and fieldRef",
    ),
    rule(
        "spec.envFrom[]",
        "",
        exactly_one("secretRef", "configMapRef"),
        "has not exactly one source",
        "set either secretRef or configMapRef",
    ),
)

RULES: tuple[Rule, ...] = (
    *_SPEC,
    *_ACCELERATOR,
    *_MODEL,
    *TRAINING,
    *PARALLELISM,
    *_DATA,
    *_volume("spec.data.volume"),
    *_volume("spec.checkpoint.volume"),
    *_WEIGHTS,
    *_ENVIRONMENT,
)
