"""The arguments of a trainer container with the engine bridge: a recipe function and its overrides."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

type Value = bool | int | float | str | list[Value] | dict[str, Value] | None

MOCK_DATA: Final = "dataset.mock"
"""true: Bridge's random tokens instead of the function's dataset."""
CHATS: Final = "dataset.chats"
"""true: the lines of `dataset.dataset_root` are chats; false: questions (`input`) and answers (`output`)."""
IMAGE_TEXT: Final = "dataset.image_text"
"""true: `dataset.dataset_root` has prepared samples of images and text; with MOCK_DATA images are random."""
SOUND_TEXT: Final = "dataset.sound_text"
"""true: as IMAGE_TEXT, of sound and text."""
MODEL_FOLDER: Final = "hub.path"
"""Folder with config.json and tokenizer of the model, read wherever the function names a model of the hub."""
BASE_OF_EXPORT: Final = "hub.export_base"
"""Folder with the config.json that the run's result is exported with, and whose rows it must have."""
NULL_TOKENIZER: Final = "NullTokenizer"
"""Value of `tokenizer.tokenizer_type` for random tokens; the trainer sets the size of its vocabulary."""
BLEND: Final = "dataset.blend"
"""true: the samples of several sources in `dataset.dataset_root` are read by their weights."""
PACKED_FOLDER: Final = "dataset.packed_folder"
"""Folder for packed samples; without it samples are padded."""
SAMPLE_SEED: Final = "dataset.seed"
"""Seed of the order in which samples of text to fine-tune on are read and packed."""
CORPUS_SEED: Final = "dataset.random_seed"
"""Seed of the order in which samples of Megatron's datasets are read, or random tokens."""
MAX_EPOCHS: Final = "dataset.max_epochs"
"""How often a run may read a packed sequence; without it, or without PACKED_FOLDER, any number."""
DATA_PATH: Final = "dataset.data_path"
"""Datasets of Megatron that a run pretrains on, with a weight before each where there are several."""
VALIDATION_DATA: Final = "dataset.validation_data_path"
"""Those that it only evaluates on, in the same form; without them shares of the others (`dataset.split`)."""
PATH_TO_CACHE: Final = "dataset.path_to_cache"
"""Folder of the index of the samples that a run which pretrains reads."""
PEFT_SCHEME: Final = "peft.scheme"
"""`lora` or `dora`: the argument `peft_scheme` of the recipe function."""


@dataclass(frozen=True)
class BridgeRun:
    """`function` is a recipe function's name; `overrides` are values by path in Bridge's ConfigContainer.

    BASE_OF_EXPORT, BLEND, CHATS, IMAGE_TEXT, MAX_EPOCHS, MOCK_DATA, MODEL_FOLDER, PACKED_FOLDER,
    PEFT_SCHEME, SOUND_TEXT and VALIDATION_DATA are not in a ConfigContainer; the trainer reads them.
    """

    function: str
    overrides: Mapping[str, Value]

    def to_arguments(self) -> list[str]:
        """Return the container's arguments, overrides as `path=JSON` in the order of their paths."""
        overrides = (f"{path}={json.dumps(value)}" for path, value in sorted(self.overrides.items()))
        return [self.function, *overrides]

    @classmethod
    def from_arguments(cls, words: Sequence[str]) -> "BridgeRun":
        """Read the container's arguments. Raises ValueError that names the argument and the fix."""
        if not words or "=" in words[0] or not words[0].isidentifier():
            found = f"not {words[0]!r}" if words else "but there is none"
            raise ValueError(
                f"the first argument must be the name of a recipe function of Megatron-Bridge, {found}"
            )
        overrides: dict[str, Value] = {}
        for word in words[1:]:
            path, equals, text = word.partition("=")
            parts = path.split(".")
            if not equals or len(parts) < 2 or not all(part.isidentifier() for part in parts):
                raise ValueError(
                    f"{word!r} is not an override: write path=JSON, train.train_iters=100 for example"
                )
            if path in overrides:
                raise ValueError(f"{path} is given twice: leave one out")
            try:
                overrides[path] = json.loads(text)
            except ValueError as error:
                raise ValueError(
                    f"{path}: {text!r} is not JSON ({error}); a text is quoted: {path}={json.dumps(text)}"
                ) from None
        return cls(words[0], overrides)
