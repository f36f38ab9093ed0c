"""The text of a first recipe: chosen as the catalog publishes it, planned, and explained line by line.

A line that begins with `#name:` is a setting that can be switched on by removing the `#`.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from megatron_operator.api.errors import FieldError, InvalidRecipeError, PlanningLimitError
from megatron_operator.api.labels import API_VERSION, KIND
from megatron_operator.api.platform import PlatformConfig
from megatron_operator.api.recipe import AcceleratorSpec
from megatron_operator.api.validation import parse_recipe
from megatron_operator.catalog import Catalog, Entry, PublishedLayout, bridge_pretraining
from megatron_operator.catalog.accelerator import select_accelerator
from megatron_operator.cli import printing
from megatron_operator.cli.errors import CommandError
from megatron_operator.cli.limits import planning_limits
from megatron_operator.cli.planning import refusals
from megatron_operator.cli.timeline import format_duration
from megatron_operator.planner import PlannedRun, admit
from megatron_operator.planner.batch_for_count import lacks_only_a_batch, with_suitable_batch
from megatron_operator.planner.candidates import Query
from megatron_operator.planner.estimate.checkpoint import checkpoint_bytes
from megatron_operator.planner.instead import names_one_model, what_fits
from megatron_operator.planner.notes import beyond_memory, lacks_memory
from megatron_operator.planner.recommend import recommend
from megatron_operator.planner.save_interval import save_interval

KEEP = 3
"""Checkpoints that the recipe keeps."""
_DOUBLINGS = 11
"""Counts that are tried where none is published: one node to 1,024."""
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


@dataclass(frozen=True, slots=True)
class Request:
    """What to start with, as on the command line; None lets the catalog or the platform decide."""

    model: str | None
    gpus: int | None
    accelerator: str | None
    mode: str | None


def starter(request: Request, platform: PlatformConfig, catalog: Catalog) -> str:
    """A commented recipe that is admitted on this platform. Without a number of GPUs it is for the smallest
    published one or, where none is published, the smallest on which a layout fits.

    Raises InvalidRecipeError if the operator would refuse it, CommandError if no recipe can be chosen.
    """
    name, entry = _recipe(request, platform, catalog)
    accelerator, counts = _accelerators(request, entry, catalog.function(name), platform)
    entry = entry.on(platform.accelerators[accelerator])
    failed: list[FieldError] = []
    known_as = platform.accelerators[accelerator].known_as(accelerator)
    published = {layout.count for layout in entry.layouts if known_as in layout.accelerators}
    for count in counts:
        body = _resource(name, entry, accelerator, count)
        try:
            planned, batch = _admitted(
                body, entry, platform, catalog, count=count if request.gpus is not None else None
            )
        except PlanningLimitError:
            raise
        except InvalidRecipeError as invalid:
            failed = failed or invalid.errors
            continue
        if request.gpus is None and count not in published and (beyond := beyond_memory(planned.plan)):
            failed = failed or [FieldError("spec.accelerator.count", f"{count} {beyond}", "give --gpus")]
            continue
        if refused := refusals(planned):
            raise InvalidRecipeError(refused)
        remark = _unusual(entry, known_as, count)
        return "".join(f"{line}\n" for line in _lines(name, entry, accelerator, planned, remark, batch))
    if request.gpus is not None:
        failed += _instead(request, entry, request.gpus, failed, platform, catalog)
    raise InvalidRecipeError(failed)


def _admitted(
    body: dict[str, Any], entry: Entry, platform: PlatformConfig, catalog: Catalog, *, count: int | None
) -> tuple[PlannedRun, int | None]:
    """The planned recipe, and the global batch size that it sets because the catalog's suits no layout.

    `count` is the number of accelerators that was asked for; without one the batch stays the catalog's.
    Raises InvalidRecipeError.
    """

    def planned() -> PlannedRun:
        with planning_limits():
            return admit(entry.name, parse_recipe(body), platform, catalog, "default")

    try:
        return planned(), None
    except InvalidRecipeError as refused:
        if count is None or not lacks_only_a_batch(refused):
            raise

        def with_batch(batch: int) -> PlannedRun:
            body["spec"]["training"] = {"globalBatchSize": batch}
            return planned()

        return with_suitable_batch(entry, count, refused, with_batch)


def _instead(
    request: Request,
    entry: Entry,
    gpus: int,
    failed: list[FieldError],
    platform: PlatformConfig,
    catalog: Catalog,
) -> list[FieldError]:
    """What fits where a recipe that was named does not, as one error; none where nothing does."""
    mode = request.mode or entry.modes[0]
    query = Query(entry.name, gpus, request.accelerator, mode, None)
    try:
        found = recommend(query, platform, catalog, planning_limits)
    except InvalidRecipeError:
        return []
    fits = what_fits(query, found, platform, catalog, planning_limits)
    message = f"{'does not fit' if lacks_memory(map(str, failed)) else 'cannot run'} on {gpus}"
    return [FieldError(entry.name, message, f"take {', or '.join(fits)}")] if fits else []


def _recipe(request: Request, platform: PlatformConfig, catalog: Catalog) -> tuple[str, Entry]:
    """Value of `spec.recipe` and its entry: the named one, or the recommended one."""
    unknown: InvalidRecipeError | None = None
    if request.model is not None:
        try:
            entry = catalog.get(request.model)
        except InvalidRecipeError as error:
            unknown = error
        else:
            if request.mode is None or request.mode in entry.modes:
                return (request.model if catalog.function(request.model) else entry.name), entry
    if request.gpus is None:
        if unknown is not None and names_one_model(request.model):
            [problem] = unknown.errors
            fix = problem.fix.partition("; or set model")[0]
            raise InvalidRecipeError([replace(problem, field="MODEL", fix=fix)])
        what = "no MODEL is named" if request.model is None else f"{request.model} is not for {request.mode}"
        if request.model is not None and not names_one_model(request.model):
            what = f"{request.model} stands for many models"
        raise CommandError(
            "--gpus", f"is not given, and {what}", "give --gpus N to have a recipe recommended"
        )
    query = Query(request.model, request.gpus, request.accelerator, request.mode or "pretrain", None)
    try:
        found = recommend(query, platform, catalog, planning_limits)
    except InvalidRecipeError as nothing:
        raise InvalidRecipeError(
            [replace(e, field="MODEL" if e.field == "--model" else e.field) for e in nothing.errors]
        ) from None
    best = found[0]
    if not names_one_model(request.model):
        # No model is named: take the first that the operator can start.
        best = next((each for each in found if each.runnable), best)
        if not best.runnable:
            message = f"no recipe that the operator can start fits on {request.gpus} GPUs"
            fits = what_fits(query, found, platform, catalog, planning_limits)
            starts = any(each.entry.starts for each in found)
            more = "give more GPUs" if starts else f"{best.entry.name} is run by Megatron-Bridge alone"
            fix = f"take {', or '.join(fits)}" if fits else f"{more}; see megatron recommend"
            raise CommandError(request.model or "--gpus", message, fix)
    if best.plan is None:
        raise CommandError(
            request.model or "megatron init",
            f"nothing fits; nearest: {best.entry.name}: {best.reasons[0]}",
            "see megatron recommend",
        )
    return best.entry.name, best.entry


def _accelerators(
    request: Request, entry: Entry, function: PublishedLayout | None, platform: PlatformConfig
) -> tuple[str, list[int]]:
    """The profile of the platform, and the counts to try in order: published ones, then one node and more."""
    layouts = [function] if function else entry.layouts
    asked = request.accelerator
    if asked is None:
        published = {each for layout in layouts for each in layout.accelerators}
        fitting = [
            name for name, profile in platform.accelerators.items() if profile.known_as(name) in published
        ]
        if fitting and platform.default_accelerator not in fitting:
            asked = fitting[0]
    picked = select_accelerator(AcceleratorSpec(type=asked, count=request.gpus or 1), platform)
    if isinstance(picked, FieldError):
        raise InvalidRecipeError([FieldError("--accelerator", picked.message, picked.fix)])
    name, profile = picked
    if request.gpus is not None:
        return name, [request.gpus]
    hardware = profile.known_as(name)
    counts = sorted({layout.count for layout in layouts if hardware in layout.accelerators})
    return name, [*counts, *(profile.per_node * 2**k for k in range(_DOUBLINGS))]


def _resource(recipe: str, entry: Entry, accelerator: str, count: int) -> dict[str, Any]:
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


def _is_power_of_two(number: int) -> bool:
    return number & (number - 1) == 0


def _unusual(entry: Entry, hardware: str, count: int) -> str | None:
    """That the count is no published one, nor twice, four times or more of one; None where it is."""
    counts = sorted({layout.count for layout in entry.layouts if hardware in layout.accelerators})
    if any(count % each == 0 and _is_power_of_two(count // each) for each in counts or [1]):
        return None
    published = ", ".join(map(str, counts)) or "none"
    return f"No layout is published for {count} x {hardware} (published: {published}); this one is planned."


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
    yield "    # An existing claim, mounted at /data, with both folders:"
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
    yield f"    keep: {KEEP}"
    if plan.parameters is not None:
        each = plan.parameters * _BYTES_PER_PARAMETER
        if planned.resolved.peft is not None:
            each = checkpoint_bytes(planned.resolved, plan) or each
        size = math.ceil(each * (KEEP + 1) / 2**30 / 10) * 10
        shown = printing.format_bytes(each)
        yield f"    # For {KEEP} checkpoints and the one being written, of about {shown} each."
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
