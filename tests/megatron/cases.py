"""The argument lists to check: every published layout, every example, and planned runs."""

import contextlib
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from megatron_operator import catalog
from megatron_operator.api.errors import InvalidRecipeError
from megatron_operator.api.platform import ImagePackage, PlatformConfig
from megatron_operator.api.recipe import MegatronRecipeSpec
from megatron_operator.api.status import Plan
from megatron_operator.catalog import ResolvedRecipe
from megatron_operator.catalog.bridge_tables import WITHOUT_DATA_SHEET
from megatron_operator.planner import megatron_arguments, plan
from megatron_operator.planner.estimate import hardware
from megatron_operator.planner.switches import promising, together
from megatron_trainer.platform import gpu

EXAMPLES = Path(__file__).parents[2] / "examples"
PACKAGES: tuple[ImagePackage, ...] = ("deepep", "hybridep", "ncclep")
"""Of the image, so that functions have their dispatcher, and the graphs that need it."""
CORPUS: dict[str, Any] = {
    "volume": {"claimName": "corpus"},
    "blend": [{"path": "web_text_document", "weight": 0.7}, {"path": "code_text_document", "weight": 0.3}],
}
PLANNED: dict[str, dict[str, Any]] = {
    "another count": {"recipe": "llama3-8b", "accelerator": {"type": "h100-sxm", "count": 64}},
    "other hardware": {"recipe": "llama3-70b", "accelerator": {"type": "gb200", "count": 32, "perNode": 4}},
    "long sequences": {
        "recipe": "llama3-8b",
        "accelerator": {"type": "h100-sxm", "count": 64},
        "model": {"maxPositionEmbeddings": 131072},
        "training": {"seqLength": 65536, "globalBatchSize": 64},
    },
    "tokens and scaled rate": {
        "recipe": "llama3-8b",
        "accelerator": {"type": "h100-sxm", "count": 8},
        "training": {"trainTokens": "1T", "globalBatchSize": 512, "lrScaling": "sqrt"},
    },
    "batch ramp-up": {
        "recipe": "gpt3-7b",
        "accelerator": {"type": "h100-sxm", "count": 8},
        "training": {"stepBatchSizeSchedule": "0:128 10B:256 50B:512"},
    },
    "FP8": {
        "recipe": "llama3-8b",
        "accelerator": {"type": "h100-sxm", "count": 16},
        "training": {"fp8Format": "hybrid", "fp8AmaxHistoryLen": 1024, "fp8AmaxComputeAlgo": "max"},
    },
    "FP4": {
        "recipe": "llama3-8b",
        "accelerator": {"type": "gb200", "count": 16},
        "training": {"fp4Format": "e2m1", "fp4ParamGather": True, "accumulateAllreduceGradsInFp32": False},
    },
    "FP16 with gradients in FP32": {
        "recipe": "gpt3-7b",
        "accelerator": {"type": "a100-80", "count": 16},
        "training": {"fp16": True, "bf16": False, "accumulateAllreduceGradsInFp32": True},
    },
    "full recomputation": {
        "recipe": "gpt3-13b",
        "accelerator": {"type": "a100-80", "count": 16},
        "parallelism": {"recomputeGranularity": "full", "recomputeMethod": "block", "recomputeNumLayers": 4},
    },
    "fully sharded": {
        "recipe": "llama3-8b",
        "accelerator": {"type": "h100-sxm", "count": 64},
        "parallelism": {"useMegatronFsdp": True},
        "recovery": {"elastic": {"minCount": 32}},
    },
    "interleaved stages": {
        "recipe": "gpt3-175b",
        "accelerator": {"type": "h100-sxm", "count": 128},
        "parallelism": {
            "tensorModelParallelSize": 8,
            "pipelineModelParallelSize": 8,
            "numVirtualStagesPerPipelineRank": 3,
        },
    },
    "elastic with asynchronous checkpoints": {
        "recipe": "gpt3-7b",
        "accelerator": {"type": "h100-sxm", "count": 64},
        "checkpoint": {"asyncSave": True},
        "recovery": {"elastic": {"minCount": 32}},
    },
    "no catalog entry": {
        "accelerator": {"type": "h100-sxm", "count": 16},
        "model": {"numLayers": 30, "hiddenSize": 3072, "numAttentionHeads": 24, "vocabSize": 32000},
        "training": {"seqLength": 2048, "globalBatchSize": 64, "lr": 1e-4, "trainIters": 1000, "bf16": True},
        "data": CORPUS
        | {"tokenizer": {"tokenizerType": "HuggingFaceTokenizer", "tokenizerModel": "/data/tokenizer"}},
    },
    "mock data": {
        "recipe": "llama3-8b",
        "accelerator": {"type": "h100-sxm", "count": 8},
        "data": {"mockData": True},
    },
    "without a GPU": {"recipe": "tiny-gpt", "accelerator": {"type": "cpu", "count": 2}},
}

SWITCHED = (
    ("llama3-70b", "h100-sxm", 24, {}),
    ("qwen3-30b-a3b", "h100-sxm", 64, {}),
    ("qwen3-30b-a3b", "gb200", 16, {"fp8Format": "e4m3", "fp8Recipe": "mxfp8"}),
    ("deepseek-v3", "h100-sxm", 2048, {}),
)
"""Recipe, accelerator, count and training of runs without a published layout, and with open settings."""


@dataclass(frozen=True)
class Case:
    """One argument list and its recipe."""

    name: str
    resolved: ResolvedRecipe
    plan: Plan
    words: list[str]

    @property
    def world_size(self) -> int:
        return self.resolved.accelerator_count

    @property
    def trainer_words(self) -> list[str]:
        """The argument list that Megatron gets, which on GPUs the trainer adapts to an image without Apex."""
        return gpu.adapt(self.words)[0] if self.resolved.profile.platform == "gpu" else self.words


@cache
def specs() -> dict[str, dict[str, Any]]:
    """Every case by name: `spec` as a user would write it."""
    return (
        dict(_published()) | dict(_examples()) | {name: {"data": CORPUS} | x for name, x in PLANNED.items()}
    )


@cache
def case(name: str) -> Case:
    """The recipe of this name, resolved, planned and written out."""
    if name in without_packages():
        return build(name, without_packages()[name], packages=())
    return build(name, (specs() | functions() | switched())[name])


def build(name: str, spec: dict[str, Any], packages: tuple[ImagePackage, ...] = PACKAGES) -> Case:
    """The case of a recipe that is none of them, on an image with these packages."""
    asked = MegatronRecipeSpec.model_validate(spec)
    resolved = catalog.resolve(asked, _platform(packages), catalog.load())
    planned = plan(resolved)
    return Case(name, resolved, planned, megatron_arguments(resolved, planned, "run"))


def _published() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every layout of every entry of engine megatron; the fewest nodes where none is published.

    A layout for several accelerators is one case where its argument list is the same on all of them.
    """
    for entry in catalog.load():
        if entry.engine != "megatron":
            continue
        if not entry.layouts:
            yield entry.name, _on_few_nodes(entry.name)
        for layout in entry.layouts:
            seen: list[list[str]] = []
            for accelerator in layout.accelerators:
                name, asked = f"{entry.name} {layout.count}x{accelerator}", {"type": accelerator}
                spec = {"recipe": entry.name, "accelerator": asked | {"count": layout.count}, "data": CORPUS}
                words = build(name, spec).words
                if words not in seen:
                    seen.append(words)
                    yield name, spec


def _on_few_nodes(recipe: str) -> dict[str, Any]:
    """The recipe on one node, or on the first of 8 and 64 nodes on which it fits."""
    for count in (8, 64, 512):
        spec = {"recipe": recipe, "accelerator": {"type": "h100-sxm", "count": count}, "data": CORPUS}
        with contextlib.suppress(InvalidRecipeError):
            build(recipe, spec)
            return spec
    raise ValueError(f"{recipe} fits on none of 1, 8 and 64 nodes")


@cache
def functions() -> dict[str, dict[str, Any]]:
    """One function of Megatron-Bridge for each combination of settings that make functions fast.

    Not those that the planner refuses, nor those with the precision-aware optimizer: Megatron builds that
    only with Transformer Engine.
    """
    library, found = catalog.load(), {}
    for name, owner in sorted(library.functions().items()):
        function, entry = library.function(name), library.get(owner)
        if function is None or entry.engine != "megatron":
            continue
        function = function.with_image(PACKAGES)
        if not function.megatron_args:
            continue
        sizes, training = function.parallelism, function.training
        fast = (*sorted(function.megatron_args), sizes.tp_comm_overlap, sizes.recompute_granularity)
        key = (bool(entry.model.num_experts), bool(entry.model.multi_latent_attention), fast)
        unknown = function.accelerators[0] in WITHOUT_DATA_SHEET
        elsewhere = any(each.less_memory for each in function.left_out or ())
        if key in found or unknown or training.use_precision_aware_optimizer or elsewhere:
            continue
        asked = {"type": function.accelerators[0], "count": function.count}
        spec = {"recipe": name, "accelerator": asked, "data": CORPUS}
        with contextlib.suppress(InvalidRecipeError):
            build(name, spec)
            found[key] = name, spec
    return dict(found.values())


@cache
def delayed() -> dict[str, dict[str, Any]]:
    """Every function that delays weight gradients and has CUDA graphs, whatever its optimizer."""
    library, found = catalog.load(), {}
    for name, owner in sorted(library.functions().items()):
        function = library.function(name)
        if function is None or library.get(owner).engine != "megatron" or name != function.function:
            continue
        known = function.accelerators[0] not in WITHOUT_DATA_SHEET
        if known and {"delay-wgrad-compute", "cuda-graph-modules"} <= (function.megatron_args or {}).keys():
            asked = {"type": function.accelerators[0], "count": function.count}
            found[name] = {"recipe": name, "accelerator": asked, "data": CORPUS}
    return found


@cache
def without_packages() -> dict[str, dict[str, Any]]:
    """The functions whose graphs are of whole iterations, on an image that lacks what these need."""
    found = {}
    for name, spec in functions().items():
        bare = build(name, spec, packages=())
        layout = bare.resolved.layout
        if layout and any("whole iterations" in each.setting for each in layout.left_out or ()):
            found[f"{name}, without packages"] = spec
    return found


@cache
def switched() -> dict[str, dict[str, Any]]:
    """Every setting that `megatron plan` may propose, on models where the layout is open.

    Not the precision-aware optimizer, which Megatron builds only with Transformer Engine.
    """
    found = {}
    for recipe, accelerator, count, training in SWITCHED:
        asked = {"type": accelerator, "count": count}
        spec = {"recipe": recipe, "accelerator": asked, "data": CORPUS, "training": training}
        before = build(recipe, spec)
        switches = list(promising(before.resolved, before.plan))
        for switch in [*switches, together(switches)]:
            if switch is None or "training.usePrecisionAwareOptimizer" in switch.settings:
                continue
            changed = copy.deepcopy(spec)
            for path, value in switch.settings.items():
                section, name = path.split(".", 1)
                changed.setdefault(section, {})[name] = value
            name = f"{recipe} {count}x{accelerator} {' '.join(switch.settings)}"
            with contextlib.suppress(InvalidRecipeError):
                build(name, changed)
                found[name] = changed
    return found


def _examples() -> Iterator[tuple[str, dict[str, Any]]]:
    """Those of engine megatron: `tests/bridge` has the overrides of the others."""
    for path in sorted(EXAMPLES.glob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text()):
            is_recipe = document["kind"] == "MegatronRecipe"
            if is_recipe and catalog.load().get(document["spec"]["recipe"]).engine == "megatron":
                yield path.name, document["spec"]


@cache
def _platform(packages: tuple[ImagePackage, ...] = ()) -> PlatformConfig:
    without_gpu = {"platform": "cpu", "perNode": 2}
    gpus: dict[str, Any] = {name: {"imageHas": list(packages)} for name in hardware.table()}
    return PlatformConfig.model_validate(
        {"accelerators": gpus | {"cpu": without_gpu, "cpu-simulated": without_gpu}, "image": "trainer"}
    )
