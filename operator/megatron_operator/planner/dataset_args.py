"""Which of Megatron's arguments decide what samples a run reads."""

from collections.abc import Mapping
from typing import Final

from megatron_contract.bridge_run import (
    CORPUS_SEED,
    DATA_PATH,
    MODEL_FOLDER,
    PATH_TO_CACHE,
    VALIDATION_DATA,
    BridgeRun,
)

_FLAGS: Final = frozenset(
    (
        *("seq-length", "seed", "split", "data-cache-path"),
        *("data-path", "train-data-path", "valid-data-path"),
        *("train-iters", "train-samples", "global-batch-size", "step-batch-size-schedule"),
        *("eval-iters", "eval-interval", "eval-global-batch-size", "start-eval-at-iter", "skip-train"),
        *("full-validation", "multiple-validation-sets", "phase-transition-iterations"),
        *("mid-level-dataset-surplus", "num-dataset-builder-threads", "per-dataset-sequences-path"),
        *("vocab-file", "merge-file", "vocab-size", "chat-template", "special-tokens", "trust-remote-code"),
        "metadata-path",
    )
)
_TOKENIZER: Final = ("tokenizer-", "tiktoken-", "null-tokenizer-")


def dataset_arguments(arguments: list[str]) -> list[str]:
    """Those of Megatron's `arguments`, with their values, that its data sets and their index depend on.

    From GPTDatasetConfig, build_tokenizer and get_train_valid_test_num_samples of megatron-core 0.19.2. The
    layout is not among them: the same samples are read on any number of accelerators.
    """
    words: list[str] = []
    taken = False
    for word in arguments:
        if word.startswith("--"):
            name = word[2:].partition("=")[0]
            taken = name in _FLAGS or name.startswith(_TOKENIZER)
        if taken:
            words.append(word)
    return words


_OF_BRIDGE: Final = {
    "model.seq_length": "seq-length",
    "train.train_iters": "train-iters",
    "train.global_batch_size": "global-batch-size",
    "validation.eval_iters": "eval-iters",
    "dataset.split": "split",
    DATA_PATH: "data-path",
    VALIDATION_DATA: "valid-data-path",
}
"""Path in Bridge's ConfigContainer -> Megatron's flag."""
_TOKENIZER_OF_BRIDGE: Final = {
    "tokenizer.tokenizer_type": "tokenizer-type",
    "tokenizer.tokenizer_model": "tokenizer-model",
}


_OF_INDEX: Final = frozenset(
    {
        *_OF_BRIDGE,
        *_TOKENIZER_OF_BRIDGE,
        "validation.eval_interval",
        CORPUS_SEED,
        MODEL_FOLDER,
        PATH_TO_CACHE,
    }
)
"""Paths in Bridge's ConfigContainer that the index of the samples depends on, or where it is."""


def bridge_index_arguments(run: BridgeRun) -> list[str]:
    """The function of a run that Megatron-Bridge pretrains, and the overrides that its index depends on."""
    return BridgeRun(
        run.function, {path: value for path, value in run.overrides.items() if path in _OF_INDEX}
    ).to_arguments()


def bridge_dataset_arguments(run: BridgeRun) -> list[str]:
    """What decides how many samples a run of Megatron-Bridge reads, in Megatron's flags.

    It is checked before the run.
    """
    return _flags_of_bridge(run, _OF_BRIDGE)


def bridge_check_arguments(run: BridgeRun) -> list[str]:
    """Those of `bridge_dataset_arguments`, and the tokenizer, which ids are checked against."""
    return _flags_of_bridge(run, _OF_BRIDGE | _TOKENIZER_OF_BRIDGE)


def _flags_of_bridge(run: BridgeRun, flags: Mapping[str, str]) -> list[str]:
    words: list[str] = []
    if VALIDATION_DATA in run.overrides:
        flags = {**flags, DATA_PATH: "train-data-path"}
    for path, flag in flags.items():
        value = run.overrides.get(path)
        if value is not None:
            words += [f"--{flag}", *map(str, value if isinstance(value, list) else [value])]
    return words
