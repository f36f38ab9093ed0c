"""Paths on a pod's volumes: where their symbolic links lead.

A recipe names paths on its volumes, and whoever fills a volume chooses its links. One that leads out of the
volume reads what is not data (the gang's token, another volume) or saves checkpoints to the container's disk.
"""

from collections.abc import Sequence
from pathlib import Path

from megatron_contract.environment import CHECKPOINT_DIR, DATA_DIR, LOCAL_CHECKPOINT_DIR

VOLUMES = tuple(map(Path, (CHECKPOINT_DIR, DATA_DIR, LOCAL_CHECKPOINT_DIR)))


def left_volume(path: Path, volumes: Sequence[Path] = VOLUMES) -> str | None:
    """Return why a path that is on a volume is not read or written; None if it stays there.

    A path that is on none of the volumes passes, and so does one that does not exist yet.
    """
    for volume in volumes:
        if path.is_relative_to(volume):
            try:
                target = path.resolve()
            except (OSError, RuntimeError) as error:
                return f"{path} cannot be resolved: {error}"
            if not target.is_relative_to(volume.resolve()):
                return (
                    f"{path} links to {target}, outside of its volume; "
                    "copy the files there, or link within the volume"
                )
    return None
