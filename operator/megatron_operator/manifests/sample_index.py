"""Where a Job builds the index of a run's samples, or packs them, before its first start."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from megatron_contract.bridge_run import PACKED_FOLDER, SAMPLE_SEED, BridgeRun
from megatron_contract.environment import DATA_DIR
from megatron_contract.preparation import index_folder

from megatron_operator.api.platform import CpuJobs
from megatron_operator.manifests.metadata import Owner
from megatron_operator.manifests.storage import Storage
from megatron_operator.planner.index_memory import index_memory, is_too_large

INDEX: Final = "--index"
"""The option of `megatron-prepare` that builds the index with the checkpoints."""
INDEX_FOLDER: Final = "--index-dir"
"""The option with the folder of the index, or of what is packed."""
LINES_FOLDER: Final = "--lines-dir"
"""The option with the folder of where lines end."""
SAMPLE_LENGTH: Final = "--seq-length"
"""The option with the tokens of a sample, or of a packed sequence."""
_PACKED_FOLDER: Final = "--packed-folder"
_PACKING: Final = 512 << 20
"""Bytes: a Job holds the lengths and places of packed samples, and their tokens are in files."""


@dataclass(frozen=True, slots=True)
class Built:
    """What a Job makes of the samples of one run, besides preparing or checking them."""

    folder: str | None
    """Folder on the data volume, from which rank 0 copies it; None for the run's, with the checkpoints."""
    memory: int
    """Bytes that this takes, about."""
    arguments: tuple[str, ...]
    """The options of `megatron-prepare`."""

    def claims(self, storage: Storage) -> dict[str, str]:
        """The claims that the Job mounts for it, beside that of the data."""
        return {"checkpoints": storage.checkpoint} if self.folder is None else {}


def index_of(
    owner: Owner,
    jobs: CpuJobs | None,
    storage: Storage,
    words: Sequence[str],
    workers: int = 1,
    of_bridge: Sequence[str] = (),
) -> Built | None:
    """The index that one of the `workers` pods of a Job builds for a run with these arguments of Megatron.

    `of_bridge`: what that of a run by Megatron-Bridge depends on. None for one that is left to rank 0.
    """
    memory = index_memory(_samples(words), of_bridge=bool(of_bridge))
    if is_too_large(memory, jobs):
        return None
    folder = _folder(owner, storage, workers)
    place = [INDEX] if folder is None else [INDEX_FOLDER, folder]
    more = ["--index-of", json.dumps(of_bridge)] if of_bridge else []
    return Built(folder, memory, (*place, *more))


def packed_of(owner: Owner, storage: Storage, run: BridgeRun, workers: int = 1) -> Built | None:
    """The samples that one of the `workers` pods of a Job packs; None for a run that packs none."""
    own = run.overrides.get(PACKED_FOLDER)
    if own is None:
        return None
    folder = _folder(owner, storage, workers)
    place = [] if folder is None else [INDEX_FOLDER, folder]
    words = (_PACKED_FOLDER, str(own), "--seed", str(run.overrides[SAMPLE_SEED]), *place)
    return Built(folder, _PACKING, words)


def line_ends_of(storage: Storage, run: BridgeRun) -> Built | None:
    """Where lines end, which the Job that checks them writes; None for what is left to rank 0."""
    kwargs = run.overrides.get("dataset.dataset_kwargs")
    if not isinstance(kwargs, dict) or not _can_mount_checkpoints(storage, 1):
        return None
    return Built(None, 0, (LINES_FOLDER, str(kwargs["index_mapping_dir"])))


def without_place(arguments: Sequence[str]) -> list[str]:
    """The arguments of a Job without where it keeps what it builds, which depends on the run's nodes."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    kept, words = [], iter(arguments[:end])
    for word in words:
        if word in (INDEX_FOLDER, LINES_FOLDER):
            next(words, None)
        elif word != INDEX:
            kept.append(word)
    return [*kept, *arguments[end:]]


def without_sample_length(arguments: Sequence[str]) -> list[str]:
    """The arguments of a Job as earlier releases had them, which gave the length to one that packs alone."""
    words = list(arguments)
    if "--check-root" in words and _PACKED_FOLDER not in words and SAMPLE_LENGTH in words:
        at = words.index(SAMPLE_LENGTH)
        del words[at : at + 2]
    return words


def _folder(owner: Owner, storage: Storage, workers: int) -> str | None:
    """The folder on the data volume; None where the Job can mount the checkpoints."""
    if _can_mount_checkpoints(storage, workers):
        return None
    return f"{DATA_DIR}/{index_folder(owner.name, owner.uid)}"


def _samples(words: Sequence[str]) -> int:
    """The samples that a run reads to train on."""
    values = dict(pairwise(words))
    samples = int(values.get("--train-samples", 0))
    if not samples and "--global-batch-size" in values:
        samples = int(values.get("--train-iters", 0)) * int(values["--global-batch-size"])
    return samples


def _can_mount_checkpoints(storage: Storage, workers: int) -> bool:
    """Whether the Job can write the index beside the checkpoints.

    A new claim for one node is bound where its first pod runs, which may be far from the accelerators. If the
    claim of the data is new too, that happens in any case. Several pods need a claim of several nodes.
    """
    new = {claim["metadata"]["name"]: claim["spec"]["accessModes"] for claim in storage.created}
    one_node = new.get(storage.checkpoint, ["ReadWriteMany"]) != ["ReadWriteMany"]
    if workers > 1:
        return storage.checkpoint in new and not one_node
    return not one_node or storage.data in new
