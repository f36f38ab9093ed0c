"""What `megatron-prepare` leaves: counts in its termination message, and folders on the data volume."""

from dataclasses import dataclass
from typing import Final

from megatron_contract.limits import Bytes, Count, LongText
from megatron_contract.wire import Message

PREPARED_FOLDER: Final = "prepared"
"""Folder of the data volume with all that is prepared."""
INDEX_FOLDER: Final = f"{PREPARED_FOLDER}/index"
"""In it; a folder for each run with the index of its samples, where the checkpoints were not mounted:
`index_folder`."""
CHECKED_FOLDER: Final = f"{PREPARED_FOLDER}/checked"
"""In it; a file for each dataset of `data.blend` with its smallest and largest token id."""


def index_folder(name: str, uid: str) -> str:
    """Folder of the data volume for the index of the recipe `name`.

    Recipes of several namespaces, or clusters, may have one name, and claims that share a file system: its
    UID is of one alone. Without a UID, which only a cluster gives, the folder has the name.
    """
    return f"{INDEX_FOLDER}/{name}.{uid}" if uid else f"{INDEX_FOLDER}/{name}"


@dataclass(frozen=True, slots=True)
class PreparationResult(Message):
    """A prepared corpus: counts, and the size in bytes of its two files."""

    documents: Count
    tokens: Count
    vocab_size: Count
    data_path: LongText
    """Prefix for Megatron's --data-path; the files are this with `.bin` and `.idx`."""
    bin_bytes: Bytes
    idx_bytes: Bytes
    left_out: Count = 0
    """Files of `data.prepare.source` that are not UTF-8 text."""
