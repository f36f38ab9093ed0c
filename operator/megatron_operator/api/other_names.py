"""Names that settings have elsewhere: older Megatron, Megatron-Bridge, NeMo, Hugging Face, PyTorch."""

import re
from collections.abc import Mapping
from typing import Final

_STAGES = "parallelism.numVirtualStagesPerPipelineRank"
_TODAY: Final = {
    _STAGES: "virtualPipelineModelParallelSize virtualPipelineParallelSize virtualPipelineSize vpp vp",
    f"{_STAGES}: layers of a stage divided by the layers of a virtual stage": (
        "numLayersPerVirtualPipelineStage layersPerVirtualStage"
    ),
    "parallelism.tensorModelParallelSize": "tensorParallelSize tensorParallel tpSize tp",
    "parallelism.pipelineModelParallelSize": "pipelineParallelSize pipelineParallel ppSize pp",
    "parallelism.contextParallelSize": "contextModelParallelSize contextParallel cpSize cp",
    "parallelism.expertModelParallelSize": "expertParallelSize expertParallel epSize ep",
    "parallelism.useDistributedOptimizer": "distributedOptimizer zeroStage zero useZero",
    "parallelism.useMegatronFsdp": "fsdp useFsdp megatronFsdp fullyShardedDataParallel useCustomFsdp",
    "parallelism.overlapGradReduce": "dpCommOverlap overlapGradientReduction",
    "parallelism.ddpBucketSize": "dpCommOverlapBucketSize bucketSize gradReduceBucketSize",
    "parallelism.recomputeGranularity": (
        "recomputeActivations checkpointActivations activationCheckpointing activationsCheckpointGranularity"
        " gradientCheckpointing"
    ),
    "parallelism.tpCommOverlap": "ubTpCommOverlap tensorParallelCommOverlap",
    "training.lr": "learningRate maxLr baseLr",
    "training.minLr": "minLearningRate minimumLr",
    "training.lrWarmupIters": "warmupSteps warmupIters lrWarmupSteps numWarmupSteps",
    "training.lrDecayStyle": "lrScheduler lrSchedulerType scheduler",
    "training.trainIters": "maxSteps trainSteps totalSteps numSteps maxIters iterations",
    "training.trainIters: epochs x samples / globalBatchSize (data.maxEpochs is only a limit)": (
        "numTrainEpochs numEpochs epochs trainEpochs totalEpochs"
    ),
    "training.trainSamples": "numSamples totalSamples",
    "training.trainTokens": "numTokens totalTokens maxTokens",
    "training.globalBatchSize": "batchSize trainBatchSize gbs",
    "training.microBatchSize": "perDeviceTrainBatchSize perGpuBatchSize mbs",
    "training.stepBatchSizeSchedule": "rampupBatchSize batchSizeRampup rampUpBatchSize",
    "training.seqLength": "sequenceLength maxSeqLength maxSeqLen seqLen contextLength",
    "training.clipGrad": "gradClip gradientClipping maxGradNorm gradientClipVal",
    "training.fp8Format: hybrid": "fp8Hybrid",
    "training.fp8Format": "fp8 fp8Mode enableFp8",
    "training.fp4Format: e2m1": "fp4 nvfp4 enableFp4 fp4Mode",
    "training.fp4Format: e2m1, whose scaling recipe is nvfp4": "fp4Recipe",
    "training.fp4ParamGather": "fp4Param",
    "training.accumulateAllreduceGradsInFp32": "gradReduceInFp32 accumulateGradsInFp32",
    "training.bf16: true": "precision mixedPrecision dtype useBf16",
    "training.usePrecisionAwareOptimizer: true and megatronArgs.optimizer-cpu-offload: true": (
        "cpuOffloadOptimizer optimizerCpuOffload offloadOptimizer"
    ),
    "model.numLayers": "numHiddenLayers layers",
    "model.ffnHiddenSize": "intermediateSize ffnSize",
    "model.numAttentionHeads": "numHeads attentionHeads",
    "model.numQueryGroups": "numKeyValueHeads numKvHeads kvHeads groupQueryAttention",
    "model.kvChannels": "headDim",
    "model.swiglu: true, squaredRelu or quickGeglu, or leave them out for GELU": (
        "activation activationFunction hiddenAct activationFunc"
    ),
    "model.rotaryBase": "ropeTheta rotaryEmbeddingBase",
    "model.normEpsilon": "rmsNormEps layernormEpsilon layerNormEps",
    "model.numExperts": "numLocalExperts numMoeExperts moeNumExperts",
    "model.moeRouterTopk": "numExpertsPerTok moeTopk topk",
    "model.positionEmbeddingType: rope": "useRotaryPositionEmbeddings",
    "accelerator.count": "gpus numGpus gpuCount worldSize",
    "accelerator.count: the accelerators of all nodes": "numNodes nnodes nodeCount",
    "accelerator.type": "gpuType gpu acceleratorType",
    "accelerator.perNode": "gpusPerNode nprocPerNode devices",
    "data.blend": "dataPath dataPrefix datasets",
    "data.blend: an entry with validation: true": (
        "validDataPath validationDataPath validationData evalDataPath validationDataset evalDataset"
    ),
    "data.tokenizer.tokenizerModel": "tokenizerPath tokenizerName",
    "data.datasetRoot": "sftDataset datasetDir",
    "data.examples: chat": "chat chatData",
    "peft.dim": "rank loraRank loraR loraDim r",
    "peft.alpha": "loraAlpha",
    "peft.dropout": "loraDropout",
    "peft.targetModules": "loraTargetModules",
    "init.from.megatron.path": "pretrainedCheckpoint restoreFromPath finetune",
    "init.modelFolder": "hfPath hfModelId",
    "checkpoint.saveInterval": "checkpointInterval saveSteps saveEvery",
    "checkpoint.noSaveOptim: false to save the optimizer states (default), true to leave them out": (
        "saveOptim saveOptimizer saveOnlyModel saveWeightsOnly"
    ),
    "checkpoint.noSaveRng: false to save the random states (default), true to leave them out": "saveRng",
    "checkpoint.keep": "saveTotalLimit maxToKeep keepLast keepCheckpoints",
    "recovery.hangTimeout": "ncclTimeout distributedTimeout distributedTimeoutMinutes",
}
"""Today's setting below `spec` -> its other names."""
_NOT_NEEDED: Final = {
    "leave it out: status.stragglers names slow ranks; megatronArgs.log-straggler logs more": (
        "enableStragglerDetection logStraggler stragglerDetection"
    ),
    (
        "leave it out: checkpoints are torch_dist (fsdp_dtensor with parallelism.useMegatronFsdp), formats"
        " that load in another layout"
    ): "ckptFormat autoDetectCkptFormat distCkptFormat",
    "leave it out: training.attentionBackend auto has the fastest kernel that the image has": (
        "useFlashAttn useFlashAttnV2 flashAttention useFlashAttention"
    ),
    "leave it out: these models are the only ones": "useMcoreModels useMcore",
    "leave it out: it follows from accelerator.count and the other sizes": (
        "dataParallelSize dataParallel dpSize dp"
    ),
    "leave it out: it follows from globalBatchSize, microBatchSize and the data-parallel size": (
        "gradientAccumulationSteps gradientAccumulation accumulateGradBatches numMicrobatches"
    ),
    "write it into a Secret, which secretKeyRef names": "apiKey apiToken",
    "leave it out: the platform sets tolerations, in the accelerator's profile": "tolerations",
    "leave it out: the platform sets affinity, by nodeLabels and topology of the accelerator's profile": (
        "affinity nodeAffinity podAffinity podAntiAffinity topologySpreadConstraints"
    ),
    "leave it out: the platform sets resources of pods, in the accelerator's profile": (
        "resources requests limits podResources"
    ),
    "leave it out: the platform sets volumes, in podTemplate of the accelerator's profile": (
        "volumes volumeMounts"
    ),
}

_VALUES: Final[Mapping[tuple[str, str], str]] = {
    ("env", "dict_type"): (
        "write names with their values, for example {LOG_LEVEL: info}; those of Secrets, ConfigMaps and"
        " fields of the pod go below spec.envValueFrom"
    ),
    ("blend", "list_type"): "write a list, for example [{path: web_text_document, weight: 0.7}]",
    ("stepBatchSizeSchedule", "string_type"): (
        "write tokens:batch pairs in one string, for example 0:384 200B:768 400B:1152"
    ),
    ("numQueryGroups", "greater_than_equal"): (
        "leave it out: then each attention head has keys and values of its own"
    ),
    ("accelerator", "model_type"): "write an object, for example {type: h100-sxm, count: 8}",
    ("accelerator", "missing"): "set type and count, for example {type: h100-sxm, count: 8}",
    ("weight", "float_type"): "set a number; a dataset that is only evaluated on has validation: true",
    ("count", "missing"): "set the number of accelerators of the whole run",
    ("size", "string_type"): "write a quantity with its unit, for example 400Gi",
    ("hangTimeout", "string_type"): (
        'write auto, "off" in quotes, without which YAML reads false, or for example 600s or 10m'
    ),
    ("saveInterval", "int_type"): "set a number of iterations; `megatron plan` has the seconds of one",
    ("trainTokens", "string_type"): "write a number in quotes, with K, M, B or T, for example 15T",
    ("fp8Format", "literal_error"): "set hybrid or e4m3; leave it out for BF16",
    ("fp4Format", "literal_error"): "set e2m1, the one format of NVFP4; leave it out for BF16",
}
"""Field and type of a pydantic error -> how to write the value; older releases took other values."""

_LAYERS: Final = {
    "set linear_qkv, which has queries, keys and values": "k_proj v_proj qkv_proj query_key_value",
    "set linear_qkv, or linear_q_proj where the model has latent attention": "q_proj",
    "set linear_proj": "o_proj",
    "set linear_fc1, which has both": "gate_proj up_proj gate_up_proj",
    "set linear_fc2": "down_proj",
    "set linear_q_down_proj": "q_a_proj",
    "set linear_q_up_proj": "q_b_proj",
    "set linear_kv_down_proj": "kv_a_proj kv_a_proj_with_mqa",
    "set linear_kv_up_proj": "kv_b_proj",
    "leave the list out for all layers that the recipe adapts": "all-linear all",
}
"""Fix -> names that the layers of an adapter have in Hugging Face's models and PEFT."""
_LAYER_FIXES: Final = {name: fix for fix, names in _LAYERS.items() for name in names.split()}


def plain(name: str) -> str:
    """A name without case, dashes and underscores."""
    return re.sub(r"[-_]", "", name).lower()


_FIXES: Final = {
    plain(name): fix
    for fix, names in (
        *((f"set spec.{today}", names) for today, names in _TODAY.items()),
        *_NOT_NEEDED.items(),
    )
    for name in names.split()
}


def fix_for_name(name: str, section: str = "") -> str | None:
    """What to set instead of a setting of another release or program; None for a name that none has.

    `section` is the section of `spec` in which the name was written: only a fix within it counts. Empty for
    any.
    """
    fix = _FIXES.get(plain(name))
    return fix if fix is None or not section or fix.startswith(f"set spec.{section}.") else None


def fix_for_value(field: str, kind: str) -> str | None:
    """How to write the value of a field with an error of pydantic's type `kind`; None for the usual fix."""
    return _VALUES.get((field, kind))


def fix_for_layer(name: object) -> str | None:
    """Which `targetModules` are the layer of this name in Hugging Face's models; None for any other."""
    return _LAYER_FIXES.get(name) if isinstance(name, str) else None
