"""The runs that the operator renders for every recipe that it starts by Megatron-Bridge."""

from typing import Any, get_args

from megatron_operator import catalog
from megatron_operator.api.platform import ImagePackage, PlatformConfig
from megatron_operator.api.recipe import MegatronRecipeSpec
from megatron_operator.catalog import bridge_pretraining
from megatron_operator.cli.default_platform import default_platform
from megatron_operator.planner import admit


def _with_every_package() -> PlatformConfig:
    """The default platform with an image that has all packages without which some recipes do not start."""
    platform = default_platform()
    profile = platform.accelerators["h100-sxm"].model_copy(update={"image_has": [*get_args(ImagePackage)]})
    return platform.model_copy(update={"accelerators": {**platform.accelerators, "h100-sxm": profile}})


PLATFORM = _with_every_package()
ENTRIES = [entry.on(PLATFORM.accelerators["h100-sxm"]) for entry in catalog.load()]

FILES: dict[str, Any] = {"volume": {"claimName": "corpus"}, "datasetRoot": "chats", "numWorkers": 2}
IMAGES: dict[str, Any] = {
    **{"volume": {"claimName": "corpus"}, "sources": [{"path": "/data/images/*.tar"}], "numWorkers": 2},
    "split": "98,2,0",
}
EVERY_SETTING: dict[str, Any] = {
    "training": {
        **{"seqLength": 2048, "microBatchSize": 1, "globalBatchSize": 64, "trainSamples": 7040},
        **{"lr": 1, "minLr": 0, "lrDecayStyle": "linear"},
        **{"optimizer": "adam", "weightDecay": 0, "clipGrad": 1, "adamBeta1": 0.8, "adamBeta2": 0},
        **{"adamEps": 1, "seed": 7, "logInterval": 3, "evalInterval": 5, "evalIters": 0, "bf16": True},
    },
    "parallelism": {
        **{"recomputeGranularity": "full", "recomputeMethod": "block", "recomputeNumLayers": 1},
    },
    "checkpoint": {"saveInterval": 20},
    "recovery": {"hangTimeout": "900s"},
}
TO_PRETRAIN: dict[str, Any] = {"trainSamples": 640_000_000}
"""The length of a run that pretrains, or reads images: warm-ups of the functions end within it."""
NOT_OF_WHOLE_LAYERS = {"overlap-moe-expert-parallel-comm", "cuda-graph-impl"}
"""What Megatron refuses where whole layers are computed again."""
LEAST = {
    **{"deepseek-v4-flash": 256, "deepseek-v4-flash-sft": 256, "deepseek-v4-flash-no-mtp-sft": 256},
    **{"nemotron3-ultra-550b-a55b": 256, "qwen3-32b-lora": 2, "step3.7-flash-sft": 512},
    "qwen3-next-80b-a3b-sft": 32,
}
"""H100s without which a model does not fit with every setting, whose recomputation is of one layer alone."""
LEAST_AT_ALL = {"deepseek-v4-pro": 1024}
"""H100s without which a model does not fit."""
WARMED_UP_LONGER = {"nemotron3-ultra-550b-a55b-sft", "nemotron3-ultra-550b-a55b-lora"}
"""Recipes whose function warms up for more samples than EVERY_SETTING trains on."""
DORA: dict[str, Any] = {"peft": {"type": "dora", "dim": 4, "dropout": 0.5, "targetModules": ["linear_proj"]}}


CORPUS: dict[str, Any] = {
    **{"volume": {"claimName": "corpus"}, "split": "9,1,0", "dataloaderType": "cyclic", "numWorkers": 2},
    "tokenizer": {"tokenizerType": "HuggingFaceTokenizer", "tokenizerModel": "/data/tokenizer"},
    "blend": [{"path": "web_text_document", "weight": 0.7}, {"path": "code_text_document", "weight": 0.3}],
}
"""Of recipes that pretrain."""


SIZES = {"numLayers": 12, "hiddenSize": 768, "numAttentionHeads": 12, "vocabSize": 50257}
"""Of a function that leaves them to the recipe."""


def arguments(recipe: str, count: int, data: dict[str, Any], **settings: Any) -> list[str]:
    """Arguments of the trainer's container."""
    entry = catalog.load().get(recipe)
    spec = {
        "recipe": recipe,
        "accelerator": {"type": "h100-sxm", "count": count},
        "init": _init(entry),
        "data": {"volume": {"claimName": "corpus"}} | data,
        **({"model": SIZES} if entry.leaves_sizes_open else {}),
        **settings,
    }
    admitted = admit("run", MegatronRecipeSpec.model_validate(spec), PLATFORM, catalog.load())
    return admitted.arguments


def _init(entry: catalog.Entry) -> dict[str, Any]:
    if entry.reads_latents:
        return {"from": {"megatron": {"path": "/data/weights"}}} if entry.fine_tunes else {}
    if entry.fine_tunes:
        return {"modelFolder": "/data/model", "from": {"megatron": {"path": "/data/weights"}}}
    return {"modelFolder": "/data/model"} if bridge_pretraining.reads_model_folder(entry) else {}


def _runs() -> dict[str, list[str]]:
    found = {}
    for entry in ENTRIES:
        if entry.engine == "bridge" and entry.starts:
            for layout in filter(entry.can_start, entry.layouts):
                name, of_mode = str(layout.function), DORA if entry.modes[0] == "lora" else {}
                files = IMAGES if entry.media else FILES if entry.fine_tunes else CORPUS
                files = FILES if entry.reads_latents else files
                # Those of functions for other GPUs may have more memory.
                own = layout.count if "h100-sxm" in layout.accelerators else 2 * layout.count
                own = max(own, LEAST_AT_ALL.get(entry.name, 0))
                found[f"{name}, mock data"] = arguments(name, own, {"mockData": True})
                found[f"{name}, files"] = arguments(name, own, files)
                short = entry.fine_tunes and not entry.media and entry.name not in WARMED_UP_LONGER
                short = short and not entry.reads_latents
                # The largest of these do not fit on the GPUs of their function without its layout.
                large = entry.media or entry.model.hybrid_layer_pattern
                count = max(2 * layout.count, 8) if large else own
                count = max(count, LEAST.get(entry.name, 0))
                training = EVERY_SETTING["training"] | ({} if short else TO_PRETRAIN)
                settings = EVERY_SETTING | {"training": training}
                joint = entry.model.diffusion and entry.model.diffusion.joint_layers
                if NOT_OF_WHOLE_LAYERS & (layout.megatron_args or {}).keys() or joint:
                    settings["parallelism"] = {"recomputeGranularity": "selective"}
                if joint:
                    # FLUX's sequences are as long as its images and texts.
                    settings["training"] = {k: v for k, v in training.items() if k != "seqLength"}
                found[f"{name}, every setting"] = arguments(name, count, files, **settings, **of_mode)
    return found


STARTED = _runs()
UNKNOWN = [[next(iter(STARTED.values()))[0], "train.no_such_field=1"]]
"""Refused, which shows that paths are compared at all."""
