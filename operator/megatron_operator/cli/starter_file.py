"""The file of a first recipe: its content, and its text, which explains it line by line.

A line that begins with `#name:` is a setting that can be switched on by removing the `#`.
"""

import math
from collections.abc import Iterator
from typing import Any

from megatron_operator.api.labels import API_VERSION, KIND
from megatron_operator.catalog import Entry, bridge_pretraining
from megatron_operator.cli import printing
from megatron_operator.cli.timeline import format_duration
from megatron_operator.planner import PlannedRun
from megatron_operator.planner.estimate.checkpoint import checkpoint_bytes
from megatron_operator.planner.save_interval import save_interval

_KEEP = 3
"""Checkpoints that the recipe keeps."""
_BYTES_PER_PARAMETER = 14
"""Of a checkpoint: BF16 weights, FP32 master weights, and Adam's two moments in FP32."""
_LAYOUT = (
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "context_parallel_size",
    "expert_model_parallel_size",
)
_CLAIM, _MODEL = "corpus", "/data/model"
_SIZES = {"numLayers": 24, "hiddenSize": 2048, "numAttentionHeads": 16, "vocabSize": 50304}
"""GPT-3 XL's, for recipes that leave the sizes of the model to their users."""
_HYPERPARAMETERS = ("seq_length", "global_batch_size", "lr", "train_iters", "train_samples")


def resource(recipe: str, entry: Entry, accelerator: str, count: int) -> dict[str, Any]:
    """The resource that the file has, before a plan is known."""
    spec: dict[str, Any] = {
        "recipe": recipe,
        "accelerator": {"type": accelerator, "count": count},
        "data": {"mockData": True},
    }
    if _fine_tunes(entry):
        spec["data"]["volume"] = {"claimName": _CLAIM}
        kind = "megatron" if entry.reads_latents else "huggingFace"
        spec["init"] = {"from": {kind: {"path": _MODEL}}}
    elif _reads_folder(entry):
        spec["data"]["volume"] = {"claimName": _CLAIM}
        spec["init"] = {"modelFolder": _MODEL}
    if entry.leaves_sizes_open:
        spec["model"] = dict(_SIZES)
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": entry.name}, "spec": spec}


def _fine_tunes(entry: Entry) -> bool:
    """Whether the operator starts it by Megatron-Bridge, from the weights of a model."""
    return entry.fine_tunes and entry.starts


def _reads_folder(entry: Entry) -> bool:
    """Whether the operator starts its pretraining by Megatron-Bridge, from a configuration of the model."""
    is_started = entry.engine == "bridge" and entry.starts and not entry.fine_tunes
    return is_started and bridge_pretraining.reads_model_folder(entry)


def text(
    recipe: str,
    entry: Entry,
    accelerator: str,
    planned: PlannedRun,
    remark: str | None,
    batch: int | None,
) -> str:
    """The text of the file. `remark`: on the count. `batch`: the global batch size that it sets, if any."""
    return "".join(f"{line}\n" for line in _lines(recipe, entry, accelerator, planned, remark, batch))


def _lines(
    recipe: str,
    entry: Entry,
    accelerator: str,
    planned: PlannedRun,
    remark: str | None,
    batch: int | None,
) -> Iterator[str]:
    count = planned.plan.world_size
    yield f"# {entry.description}, on {count} x {accelerator}. From `megatron init`."
    if remark:
        yield f"# {remark}"
    yield "#   megatron validate -f FILE    every error, as the operator would report it"
    yield "#   megatron plan -f FILE        layout, memory and speed"
    yield "#   kubectl apply -f FILE        start; then `megatron status NAME --watch`"
    yield "#   megatron explain FIELD       what a field means, for example spec.checkpoint"
    yield "# Settings behind a # are switched on by removing it."
    yield f"apiVersion: {API_VERSION}"
    yield f"kind: {KIND}"
    yield "metadata:"
    yield f"  name: {entry.name}"
    yield "spec:"
    yield f"  # Model, hyperparameters and published layouts: megatron recipes show {entry.name}"
    yield f"  recipe: {recipe}"
    yield "  accelerator:"
    yield f"    type: {accelerator}"
    pods = f"{planned.plan.nodes} pod{'s' if planned.plan.nodes > 1 else ''} of {planned.plan.per_node}"
    yield f"    count: {count}  # of the whole run, in {pods}"
    if entry.leaves_sizes_open:
        yield "  # The sizes of your model:"
        yield "  model:"
        yield from (f"    {name}: {size}" for name, size in _SIZES.items())
    yield from _init(entry) if _fine_tunes(entry) else ()
    if _reads_folder(entry):
        yield "  init:"
        yield "    # A folder of the claim below with config.json and tokenizer. No weights are read."
        yield f"    modelFolder: {_MODEL}"
        if not bridge_pretraining.conversion_obstacle(entry):
            yield "    # Start from its weights, which a Job imports:"
            yield f"    #from: {{huggingFace: {{path: {_MODEL}}}}}"
            yield "  # The trained model, written by another Job at the end:"
            yield f"  #export: {{huggingFace: {{path: {_MODEL}-trained}}}}"
    if entry.reads_latents:
        yield from _latents()
    else:
        yield from _samples(entry) if _fine_tunes(entry) else _data(entry)
    yield from _checkpoint(planned)
    yield from _overrides(entry, planned, batch)


def _init(entry: Entry) -> Iterator[str]:
    yield "  init:"
    if entry.reads_latents:
        yield "    # A folder of the claim with checkpoints of Megatron-Bridge; or recipe: NAME of a run."
        yield f"    from: {{megatron: {{path: {_MODEL}}}}}"
        return
    yield "    # A folder of the claim below with the model, as Hugging Face publishes it. A Job imports it."
    yield f"    from: {{huggingFace: {{path: {_MODEL}}}}}"
    yield "  # The fine-tuned model, written by another Job at the end:"
    merge = ", merge: true" if entry.modes[0] == "lora" else ""
    yield f"  #export: {{huggingFace: {{path: {_MODEL}-tuned}}{merge}}}"


def _samples(entry: Entry) -> Iterator[str]:
    yield "  data:"
    yield "    # An existing claim, mounted at /data, with the folder of the model:"
    yield f"    volume: {{claimName: {_CLAIM}}}"
    what = entry.media or "tokens"
    yield f"    # Random {what}, for a first trial. For your data remove this line and switch on the others."
    yield "    mockData: true"
    if entry.media:
        samples = f"conversations and {entry.media}"
        yield f"    # Tar files with {samples} in it; shares of both files; epochs at most:"
        yield f'    #sources: [{{path: "/data/{entry.media}/*.tar", format: webdataset}}]'
    else:
        yield "    # Chats in it (OpenAI's or ShareGPT's form); shares of both files; epochs at most:"
        yield '    #sources: [{path: "/data/raw/*.jsonl", format: chat}]'
    yield "    #split: 98,2,0"
    yield "    #maxEpochs: 3"


def _latents() -> Iterator[str]:
    yield "  data:"
    yield "    # An existing claim, mounted at /data:"
    yield f"    volume: {{claimName: {_CLAIM}}}"
    yield "    # Random latents, for a first trial. For your data remove this line and switch on the other."
    yield "    mockData: true"
    yield "    # A folder in it with tar files of latents; those of the evaluation are in its validation:"
    yield "    #datasetRoot: latents"


def _data(entry: Entry) -> Iterator[str]:
    tokenizer, needed = entry.data.tokenizer, "" if _reads_folder(entry) else "#"
    kind = (tokenizer and tokenizer.tokenizer_type) or "HuggingFaceTokenizer"
    model = (tokenizer and tokenizer.tokenizer_model) or "/data/tokenizer"
    yield "  data:"
    yield "    # Random tokens, for a first trial. For your data remove this line and switch on the others."
    yield "    mockData: true"
    yield "    # An existing claim, mounted at /data:"
    yield f"    {needed}volume: {{claimName: {_CLAIM if _reads_folder(entry) else 'corpus'}}}"
    yield f"    #tokenizer: {{tokenizerType: {kind}, tokenizerModel: {model}}}"
    yield "    # Prefixes of .bin and .idx files in it, with their shares of the mix:"
    yield "    #blend: [{path: corpus_text_document, weight: 1.0}]"


def _checkpoint(planned: PlannedRun) -> Iterator[str]:
    plan = planned.plan
    step = plan.expected.step_seconds if plan.expected else None
    yield "  checkpoint:"
    if step is None:
        yield f"    saveInterval: {min(500, plan.train_iters or 500)}  # iterations"
    else:
        interval = save_interval(step, plan.train_iters)
        yield f"    saveInterval: {interval}  # iterations; about {format_duration(interval * step)}"
    yield f"    keep: {_KEEP}"
    if plan.parameters is not None:
        each = plan.parameters * _BYTES_PER_PARAMETER
        if planned.resolved.peft is not None:
            each = checkpoint_bytes(planned.resolved, plan) or each
        size = math.ceil(each * (_KEEP + 1) / 2**30 / 10) * 10
        shown = printing.format_bytes(each)
        yield f"    # For {_KEEP} checkpoints and the one being written, of about {shown} each."
        yield "    # The storage class is the platform's default; another one: storageClassName."
        yield f"    volume: {{size: {size}Gi}}"


def _overrides(entry: Entry, planned: PlannedRun, batch: int | None) -> Iterator[str]:
    training = planned.resolved.training
    yield "  # Hyperparameters of the catalog; a value that is set here replaces it."
    if batch is None:
        yield "  #training:"
    else:
        yield "  training:"
        own = entry.training.global_batch_size
        yield f"    globalBatchSize: {batch}  # no layout on this count divides the catalog's {own}"
    # Latents are as long as images and videos are.
    names = [name for name in _HYPERPARAMETERS if not (entry.reads_latents and name == "seq_length")]
    for name in names:
        value = getattr(training, name)
        if value is not None and not (batch and name == "global_batch_size"):
            yield f"    #{_field(name)}: {value!r}" if batch else f"  #  {_field(name)}: {value!r}"
    yield "  # The layout that `megatron plan` chose; a size that is set here is kept."
    yield "  #parallelism:"
    for name in _LAYOUT:
        size = getattr(planned.plan, name)
        if size > 1 or name != "expert_model_parallel_size":
            yield f"  #  {_field(name)}: {size}"
    yield "  # Check every pod's accelerators and network before the first step."
    yield "  #recovery: {preflight: true}"


def _field(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)
