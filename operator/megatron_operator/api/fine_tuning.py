"""What a run starts from, the adapters that it trains, and what it exports."""

from pathlib import PurePosixPath
from typing import Annotated, Literal

from megatron_contract.environment import CHECKPOINT_DIR
from pydantic import Field

from megatron_operator.api.base import ApiModel
from megatron_operator.api.bounds import FractionBelowOne, Name, Text, Width
from megatron_operator.api.pod_environment import KeyReference

ABSOLUTE_PATTERN = r"^/.*$"

IMPORTED = "-megatron"
"""Appended to the path of a Hugging Face folder: the checkpoint that is imported from it."""

FOLDER_PATTERN = r"^/.+$"
HUB_NAME_PATTERN = r"^[A-Za-z0-9_][A-Za-z0-9_.-]*/[A-Za-z0-9_][A-Za-z0-9_.-]*$"
REVISION_PATTERN = r"^[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)*$"

FolderPath = Annotated[Text, Field(min_length=1, pattern=FOLDER_PATTERN)]
AbsolutePath = Annotated[Text, Field(min_length=1, pattern=ABSOLUTE_PATTERN)]
TargetModule = Literal[
    "linear_qkv",
    "linear_proj",
    "linear_fc1",
    "linear_fc2",
    "linear_q_proj",
    "linear_q_down_proj",
    "linear_q_up_proj",
    "linear_kv_down_proj",
    "linear_kv_up_proj",
    "in_proj",
    "out_proj",
]
TARGET_MODULES: tuple[TargetModule, ...] = ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2")
"""All linear layers of a dense transformer layer, as Megatron names them."""
LATENT_MODULES: tuple[TargetModule, ...] = ("linear_kv_down_proj", "linear_kv_up_proj", "linear_proj")
"""Those of latent attention, beside those of its queries."""
STATE_SPACE_MODULES: tuple[TargetModule, ...] = ("in_proj", "out_proj")
"""Those of a Mamba-2 layer."""


ModelPart = Literal["language", "vision", "projector"]
"""A part of a vision-language model: the language model, the vision tower, and the projector between them."""
FrozenParts = Annotated[list[ModelPart], Field(min_length=1, max_length=2)]


class MegatronWeights(ApiModel):
    """A checkpoint in `torch_dist`; for engine `bridge` one of Megatron-Bridge."""

    path: AbsolutePath
    """Its folder as the pod sees it: the `save` folder of a run; with engine `bridge` also one `iter_*`."""


class HuggingFaceFolder(ApiModel):
    """A folder as `save_pretrained` of transformers writes it."""

    path: FolderPath
    """The folder as the pod sees it."""


class HuggingFaceSource(ApiModel):
    """A Hugging Face model: a folder, or a name on a hub; exactly one is set."""

    path: FolderPath | None = None
    """A folder as `save_pretrained` of transformers writes it, as the pod sees it."""
    name: Annotated[str, Field(max_length=200, pattern=HUB_NAME_PATTERN)] | None = None
    """Name on a hub, such as `meta-llama/Llama-3.1-8B`, where `platform.hub.enabled` is true. The import Job
    downloads it to `/data/hub/<name>/<revision>`, without `data.volume` to `/checkpoints/hub/...`."""
    revision: Annotated[str, Field(max_length=200, pattern=REVISION_PATTERN)] | None = None
    """Branch, tag or commit of `name`; default `main`, as it is at the first download."""
    secret_key_ref: KeyReference | None = None
    """Token for a gated or private model, for the import Job alone; default that of `platform.hub`."""

    @property
    def folder(self) -> str:
        """The folder of a resolved recipe, also of a model with a name, without a slash at its end."""
        assert self.path is not None, "a rule requires one of path and name, and the catalog adds the path"
        return plain_path(self.path)

    @property
    def field(self) -> str:
        """The field that names the model, below `spec`."""
        return f"init.from.huggingFace.{'path' if self.name is None else 'name'}"


class ExportFolder(HuggingFaceFolder):
    """A folder that an export writes."""

    base: FolderPath | None = None
    """Folder with the model's config.json and tokenizer, which the result gets. Required where neither
    `init.from.huggingFace` nor, with engine `bridge`, `init.modelFolder` gives them."""


class WeightsSource(ApiModel):
    """Where weights are taken from; exactly one source is set."""

    megatron: MegatronWeights | None = None
    """A checkpoint of Megatron."""
    recipe: Annotated[Name, Field(min_length=1)] | None = None
    """Another recipe of the namespace that has succeeded: weights of its newest checkpoint, in any layout.
    Both keep their checkpoints on one claim. Adapters are trained further, or merged to train all weights."""
    hugging_face: HuggingFaceSource | None = None
    """A Hugging Face model, which a Job imports first, as `<path>-megatron` beside it."""

    @property
    def checkpoint(self) -> str:
        """The folder of the checkpoint that the run starts from, imported or not."""
        if self.hugging_face is not None:
            return f"{self.hugging_face.folder}{IMPORTED}"
        if self.recipe is not None:
            return f"{CHECKPOINT_DIR}/{self.recipe}"
        assert self.megatron is not None, "a rule requires one of them"
        return self.megatron.path

    @property
    def field(self) -> str:
        """The field that is set, below `spec`."""
        if self.hugging_face is not None:
            return self.hugging_face.field
        return "init.from.recipe" if self.recipe is not None else "init.from.megatron.path"


class InitSpec(ApiModel):
    """What a run starts from."""

    source: WeightsSource | None = Field(default=None, alias="from")
    """Weights of the model, without optimizer and iteration. A restart takes the run's own checkpoints."""
    model_folder: AbsolutePath | None = None
    """Folder of the Hugging Face model as the pod sees it: config.json, from which the architecture is read,
    and tokenizer. Engine `bridge` only. Default the folder of `from.huggingFace`."""

    @property
    def folder_of_model(self) -> str | None:
        """`modelFolder`, or the folder that the weights are imported from."""
        source = self.source.hugging_face if self.source else None
        return self.model_folder or (source.folder if source else None)

    @property
    def field_of_model(self) -> str:
        """The field that `folder_of_model` is from."""
        source = self.source.hugging_face if self.source and self.model_folder is None else None
        return source.field if source else "init.modelFolder"

    @property
    def base_of_export(self) -> str | None:
        """The Hugging Face folder that an export takes configuration and, for adapters, weights from."""
        source = self.source.hugging_face if self.source else None
        return source.folder if source else self.model_folder


class PeftSpec(ApiModel):
    """Adapters of a recipe of mode `lora`; what is left out comes from its Megatron-Bridge function."""

    type: Literal["lora", "dora"] | None = None
    """LoRA (default), or DoRA, which also trains the magnitude of each output."""
    dim: Annotated[int, Field(ge=1, le=65_536)] | None = None
    """Rank of the adapters."""
    alpha: Width | None = None
    """Adapters are scaled by alpha / dim."""
    dropout: FractionBelowOne | None = None
    """Dropout in front of the adapters."""
    target_modules: Annotated[list[TargetModule], Field(min_length=1, max_length=11)] | None = None
    """Linear layers that get an adapter; of models with experts those of attention and Mamba-2 only."""


class ExportSpec(ApiModel):
    """Weights for others, written by a Job once the run has succeeded."""

    hugging_face: ExportFolder
    """The folder to write; it must not exist yet."""
    merge: bool | None = None
    """Add the adapters to the weights that they belong to; required for mode `lora`, refused for others."""
    when: Annotated[list[Literal["best", "end"]], Field(min_length=1, max_length=2)] | None = None
    """Which checkpoint, once the run has reached its last iteration: `end` (default), the newest; `best`,
    the one with the lowest validation loss. Both are written to the folders `best` and `end` in `path`."""

    @property
    def moments(self) -> list[Literal["best", "end"]]:
        """`when`, or its default."""
        return self.when or ["end"]

    def folder(self, moment: Literal["best", "end"]) -> str | None:
        """The folder that this checkpoint is exported to; None for one that is not exported."""
        if moment not in self.moments:
            return None
        path = plain_path(self.hugging_face.path)
        return path if len(self.moments) == 1 else f"{path}/{moment}"


def plain_path(path: str) -> str:
    """The path without repeated slashes, and without one at its end."""
    return str(PurePosixPath(path))
