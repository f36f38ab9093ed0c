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

_PACKING: Final = 512 << 20
"""Some 150 bytes of each of three million samples; their tokens are in files."""


@dataclass(frozen=True, slots=True)
class Index:
    """The index of the samples of one run."""

    folder: str | None
    """Folder on the data volume, from which rank 0 copies it; None for the run's, with the checkpoints."""
    memory: int
    """Bytes that building it takes, about."""
    of_bridge: tuple[str, ...] = ()
    """What the index of a run by Megatron-Bridge depends on."""

    def arguments(self) -> list[str]:
        """The options of `megatron-prepare`."""
        place = ["--index"] if self.folder is None else ["--index-dir", self.folder]
        return [*place, *(["--index-of", json.dumps(self.of_bridge)] if self.of_bridge else [])]

    def claims(self, storage: Storage) -> dict[str, str]:
        """The claims that the Job mounts for it, beside that of the data."""
        return {"checkpoints": storage.checkpoint} if self.folder is None else {}


@dataclass(frozen=True, slots=True)
class Packed:
    """The packed samples of one run."""

    run: BridgeRun
    folder: str | None
    """As that of an Index."""
    memory: int = _PACKING
    """Bytes that packing takes, about."""

    def arguments(self) -> list[str]:
        """The options of `megatron-prepare`."""
        overrides = self.run.overrides
        words = ["--packed-folder", str(overrides[PACKED_FOLDER]), "--seed", str(overrides[SAMPLE_SEED])]
        return words if self.folder is None else [*words, "--index-dir", self.folder]

    def claims(self, storage: Storage) -> dict[str, str]:
        """The claims that the Job mounts for them, beside that of the data."""
        return {"checkpoints": storage.checkpoint} if self.folder is None else {}


@dataclass(frozen=True, slots=True)
class LineEnds:
    """Where the lines of a file to fine-tune on end, for Megatron-Bridge's index of them."""

    written_to: str
    folder: None = None
    """They are written with the checkpoints."""
    memory: int = 0

    def arguments(self) -> list[str]:
        """The options of `megatron-prepare`."""
        return ["--lines-dir", self.written_to]

    def claims(self, storage: Storage) -> dict[str, str]:
        """The claims that the Job mounts for them, beside that of the data."""
        return {"checkpoints": storage.checkpoint}


type Built = Index | Packed | LineEnds


def index_of(
    owner: Owner,
    jobs: CpuJobs | None,
    storage: Storage,
    words: Sequence[str],
    workers: int = 1,
    of_bridge: Sequence[str] = (),
) -> Index | None:
    """Where one of the `workers` pods of a Job builds the index of a run with these arguments of Megatron.

    `of_bridge`: what that of a run by Megatron-Bridge depends on. None for one that is left to rank 0.
    """
    memory = index_memory(_samples(words), of_bridge=bool(of_bridge))
    if is_too_large(memory, jobs):
        return None
    return Index(_folder(owner, storage, workers), memory, tuple(of_bridge))


def packed_of(owner: Owner, storage: Storage, run: BridgeRun, workers: int = 1) -> Packed | None:
    """Where one of the `workers` pods of a Job packs the samples of a run; None for one that packs none."""
    if run.overrides.get(PACKED_FOLDER) is None:
        return None
    return Packed(run, _folder(owner, storage, workers))


def line_ends_of(storage: Storage, run: BridgeRun) -> LineEnds | None:
    """Where the Job that checks samples writes the ends of their lines; None for what is left to rank 0."""
    kwargs = run.overrides.get("dataset.dataset_kwargs")
    if not isinstance(kwargs, dict) or not _can_mount_checkpoints(storage, 1):
        return None
    return LineEnds(str(kwargs["index_mapping_dir"]))


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
