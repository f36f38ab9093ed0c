"""Settings that a checkpoint fixes: a later start of the same run must not change them."""

from collections.abc import Collection, Mapping
from typing import Final

from megatron_operator.api.errors import FieldError
from megatron_operator.api.status import Plan
from megatron_operator.catalog import ramp_up
from megatron_operator.catalog.data import DEFAULT_VOCABULARY
from megatron_operator.catalog.resolved import ResolvedRecipe

FREE_MODEL_SETTINGS: Final = frozenset(
    {
        "attentionDropout",
        "hiddenDropout",
        "initMethodStd",
        "makeVocabSizeDivisibleBy",
        "moeAuxLossCoeff",
        "moeZLossCoeff",
        "moeRouterLoadBalancingType",
        "moeRouterBiasUpdateRate",
        "moeRouterDtype",
        "moePermuteFusion",
        "moeTokenDispatcherType",
        "mtpLossScalingFactor",
        "noRopeFusion",
    }
)
"""Settings of the model that affect neither the shape nor the meaning of its weights."""
NUMBER_FORMATS: Final = (
    "bf16",
    "fp16",
    "fp8Format",
    "fp8Recipe",
    "fp8ParamGather",
    "fp4Format",
    "fp4ParamGather",
    "usePrecisionAwareOptimizer",
)
NOT_RECORDED_BEFORE: Final = frozenset({"training.fp4Format", "training.fp4ParamGather"})
"""Settings that a function could bring before contracts had them: that of such a run has none."""
VOCABULARY: Final = "data.prepare.tokenizerVocabSize"
"""Size of a tokenizer that is trained. Contracts of 0.2.0 have its default beside one that is named too."""
OPTIMIZER: Final = "training.optimizer"
BATCH: Final = "training.globalBatchSize"
"""The batch, under a ramp-up its steps in samples. Contracts of before have none."""
TOKENS_OF_A_SAMPLE: Final = "training.seqLength"
"""Where trainTokens sets the length, which has as many iterations as it is divided into. Contracts of before
have none."""
MODEL_FOLDER: Final = "init.modelFolder"
"""The model's folder, also where `init.from.huggingFace` names it."""
SOURCE: Final = "init.from.megatron.path"
"""The checkpoint that frozen weights are taken from, also where another field of `init.from` names it."""
GATES: Final = "moe-mlp-glu-interleave-size"
"""Flag by which the rows of the experts' first weight are in another order."""
LAYOUT: Final = (
    ("tensorModelParallelSize", "tensor_model_parallel_size"),
    ("pipelineModelParallelSize", "pipeline_model_parallel_size"),
    ("expertModelParallelSize", "expert_model_parallel_size"),
    ("expertTensorParallelSize", "expert_tensor_parallel_size"),
)
TENSORS: Final = f"parallelism.{LAYOUT[0][0]}"
RESHARDABLE: Final = "optimizerReshardable"
DISTRIBUTED: Final = frozenset({"--use-distributed-optimizer", "ddp.use_distributed_optimizer=true"})
"""Arguments of both engines by which ranks share the optimizer states."""
NEXT_CHECKPOINT: Final = "fromNextCheckpoint"
"""Value of RESHARDABLE after `recovery.elastic` was added to a run: what it saved before stays as it is."""
FULLY_RESHARDABLE: Final = frozenset(
    {
        "--dist-ckpt-optim-fully-reshardable",
        "checkpoint.dist_ckpt_optim_fully_reshardable=true",
        "--use-megatron-fsdp",
    }
)
"""Arguments of both engines by which checkpoints have the optimizer states for any layout."""
WITHOUT_OPTIMIZER: Final = frozenset({"--no-save-optim", "checkpoint.save_optim=false"})
"""Arguments of both engines by which checkpoints have no optimizer states."""
SHARDED: Final = "parallelism.useMegatronFsdp"
"""The setting by which checkpoints are in Megatron FSDP's format."""


def checkpoint_contract(
    resolved: ResolvedRecipe, plan: Plan, megatron_args: Collection[str]
) -> dict[str, str]:
    """Path below `spec` -> value of every setting that a checkpoint of this run fixes."""
    model = resolved.model.wire()
    free = set(FREE_MODEL_SETTINGS)
    if model.get("positionEmbeddingType") != "learned_absolute":
        free.add("maxPositionEmbeddings")
    fixed = {f"model.{name}": value for name, value in model.items() if name not in free}
    training = resolved.training.wire()
    fixed |= {f"training.{name}": training[name] for name in NUMBER_FORMATS if name in training}
    if GATES in resolved.megatron_args:
        fixed[f"megatronArgs.{GATES}"] = resolved.megatron_args[GATES]
    fixed[OPTIMIZER] = training.get("optimizer") or "adam"
    steps = ramp_up.of_training(training)
    fixed[BATCH] = plan.global_batch_size if steps is None else " ".join(f"{s}:{b}" for s, b in steps)
    if "training.trainTokens" in resolved.origins:
        fixed[TOKENS_OF_A_SAMPLE] = resolved.training.seq_length
    if resolved.data.tokenizer is not None:
        fixed |= {f"data.tokenizer.{name}": value for name, value in resolved.data.tokenizer.wire().items()}
    if resolved.engine == "bridge" and not resolved.fine_tunes and resolved.init.folder_of_model:
        fixed[MODEL_FOLDER] = resolved.init.folder_of_model
    if resolved.data.prepare is not None and resolved.data.prepare.tokenizer_vocab_size is not None:
        fixed[VOCABULARY] = resolved.data.prepare.tokenizer_vocab_size
    fixed |= {f"parallelism.{name}": getattr(plan, attribute) for name, attribute in LAYOUT}
    if plan.use_megatron_fsdp:
        fixed[SHARDED] = True
    if resolved.freezes_otherwise:
        # The optimizer states are those of the other parts.
        fixed["freeze"] = " ".join(resolved.frozen)
    if resolved.peft is not None:
        fixed |= {f"peft.{name}": value for name, value in resolved.peft.wire().items() if name != "dropout"}
        if resolved.init.source is not None:
            # Checkpoints hold adapters only: a restart takes the frozen weights from there again.
            fixed[SOURCE] = resolved.init.source.checkpoint
    fixed[RESHARDABLE] = _is_reshardable(set(megatron_args))
    # False equals unset: Megatron's switches are off by default.
    set_values = {path: value for path, value in fixed.items() if value is not False or path == RESHARDABLE}
    return {path: _text(set_values[path]) for path in sorted(set_values)}


def _is_reshardable(args: set[str]) -> bool:
    if not DISTRIBUTED & args or FULLY_RESHARDABLE & args:
        return True
    return bool(WITHOUT_OPTIMIZER & args)


def continued_contract(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, str]:
    """The contract of a run with checkpoints made under `before` that another job continues under `after`."""
    became = after.get(RESHARDABLE) == "true" and before.get(RESHARDABLE) in ("false", NEXT_CHECKPOINT)
    return {**after, RESHARDABLE: NEXT_CHECKPOINT} if became else dict(after)


def contract_after_save(contract: Mapping[str, str]) -> dict[str, str]:
    """The contract once the job with this contract has saved a checkpoint itself."""
    saved = {RESHARDABLE: "true"} if contract.get(RESHARDABLE) == NEXT_CHECKPOINT else {}
    return {**contract, **saved}


def contract_violations(
    before: Mapping[str, str], after: Mapping[str, str], iteration: int | None, trained: int | None = None
) -> list[FieldError]:
    """The settings in `after` with which a run with contract `before` cannot continue from its checkpoints.

    `iteration` is that of its newest checkpoint, `trained` that which it has reached, by default the same.
    """
    made = _checkpoints(iteration)
    layout = {f"parallelism.{name}" for name, _ in LAYOUT}
    errors = []
    for path in sorted((before.keys() | after.keys()) - {RESHARDABLE, BATCH, TOKENS_OF_A_SAMPLE} - layout):
        old, new = before.get(path), after.get(path)
        if old is None and path in NOT_RECORDED_BEFORE:
            continue
        if path == VOCABULARY and (old, new) == (str(DEFAULT_VOCABULARY), None):
            continue
        if old != new:
            errors.append(changed_setting(path, old, new, iteration))
    old, new = before.get(BATCH), after.get(BATCH)
    if old and new and not _has_batches_of(old, new, trained or iteration):
        errors.append(_changed_batch(old, new, iteration))
    old, new = before.get(TOKENS_OF_A_SAMPLE), after.get(TOKENS_OF_A_SAMPLE)
    if old and new and old != new:
        errors.append(_changed_tokens(old, new, iteration))
    if _has_magnitudes_by_rank(before):
        layout.remove(TENSORS)
        old, new = before.get(TENSORS), after.get(TENSORS)
        if old != new:
            message = (
                f"is {new}, and the magnitudes of DoRA on linear_fc1 in {made} are in the order of TP {old}"
            )
            way = (
                f"set {old}, or start a new recipe under another name, without linear_fc1 in "
                "peft.targetModules"
            )
            errors.append(FieldError(f"spec.{TENSORS}", message, way))
    if before.get(RESHARDABLE) in ("false", NEXT_CHECKPOINT):
        for path in sorted(layout):
            old, new = before.get(path), after.get(path)
            if old != new:
                message = (
                    f"is {new}, and the optimizer state of {made} is sharded for {old}: "
                    "only the data-parallel size may change"
                )
                errors.append(FieldError(f"spec.{path}", message, _ways_out(old, before)))
    return errors


def changed_setting(path: str, old: str | None, new: str | None, iteration: int | None) -> FieldError:
    """The error for a setting below `spec` that the run's checkpoints have otherwise."""
    message = f"is {new or 'not set'}, and {_checkpoints(iteration)} was made with {old or 'none'}"
    return FieldError(f"spec.{path}", message, "set it back, or start a new recipe under another name")


def _has_batches_of(old: str, new: str, iteration: int | None) -> bool:
    """Whether the iterations until this one have as many samples with batches `new` as with `old`.

    Megatron counts the iterations of the whole run from its start with the batches that it is given.
    """
    if old == new:
        return True
    try:
        before, after = (ramp_up.ramp_up(each if ":" in each else f"0:{each}") for each in (old, new))
    except ValueError:
        return False
    if iteration is None:
        return False
    return ramp_up.samples_of(before, iteration) == ramp_up.samples_of(after, iteration)


def _changed_batch(old: str, new: str, iteration: int | None) -> FieldError:
    name = "stepBatchSizeSchedule" if ":" in new else "globalBatchSize"
    by_sample = " (batches by their first sample)" if ":" in old + new else ""
    message = (
        f"is {new}, and {_checkpoints(iteration)} was made with {old}{by_sample}: Megatron would count the "
        "run's iterations as ones of the other batch, for its length and its learning rate"
    )
    back = f"set training.globalBatchSize: {old}"
    if ":" in old:
        back = "keep the batches of the samples that are trained"
    way = (
        f"{back}; or start a new recipe under another name with init.from; or, in Megatron's own loop, give "
        "the batches of later samples by stepBatchSizeSchedule, with trainSamples"
    )
    return FieldError(f"spec.training.{name}", message, way)


def _changed_tokens(old: str, new: str, iteration: int | None) -> FieldError:
    message = (
        f"is {new}, and {_checkpoints(iteration)} was made with {old}: trainTokens would be another number "
        "of iterations, of which those so far would count as ones of the new length, for the end of the run "
        "and its learning rate"
    )
    way = (
        f"set training.seqLength: {old}; or give the length of the whole run as trainIters, under a batch "
        "ramp-up as trainSamples; or start a new recipe under another name with init.from"
    )
    return FieldError(f"spec.{TOKENS_OF_A_SAMPLE}", message, way)


def _checkpoints(iteration: int | None) -> str:
    return "the run's checkpoints" if iteration is None else f"the run's checkpoint of iteration {iteration}"


def _ways_out(old: str | None, before: Mapping[str, str]) -> str:
    """How the layout of a run can be changed whose optimizer state only fits the layout that it has."""
    if before.get(RESHARDABLE) == NEXT_CHECKPOINT:
        return (
            f"set {old} until the run has saved another checkpoint, which any layout can load, then change it"
        )
    if _has_magnitudes_by_rank(before):
        # It is refused with recovery.elastic.
        return (
            f"set {old}; or when it has succeeded, start a new recipe in the new layout with "
            "init.from.recipe, which takes the weights without the optimizer state"
        )
    return (
        f"set {old}; or set recovery.elastic first, and change the layout once the run has saved again; "
        "or when it has succeeded, start a new recipe in the new layout with init.from.recipe, "
        "which takes the weights without the optimizer state"
    )


def _has_magnitudes_by_rank(contract: Mapping[str, str]) -> bool:
    """Whether checkpoints have DoRA of a gated `linear_fc1`: see `fine_tuning.fixes_tensor_parallelism`."""
    adapts_gates = "linear_fc1" in contract.get("peft.targetModules", "")
    return contract.get("peft.type") == "dora" and adapts_gates and "model.squaredRelu" not in contract


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
