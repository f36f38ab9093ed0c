"""What the processes of the preflight leave for their launcher, and their limits. Imports no torch."""

import json
from pathlib import Path

DEVICE_START_SECONDS = 30.0
"""For a context on each device: without the driver's persistence mode it initialises them all first."""
DEVICE_CHECK_SECONDS = 15.0
"""For the check of devices that have started."""
EXCHANGE_SECONDS = 6.0


def report_file(folder: Path, local: int) -> Path:
    """Where the rank `local` of a pod leaves what it measured on its device."""
    return folder / f"device-check-{local}.json"


def started_file(folder: Path, local: int) -> Path:
    """A file that exists once the rank `local` has imported what it needs."""
    return report_file(folder, local).with_suffix(".started")


def result_file(folder: Path, local: int) -> Path:
    """Where the rank `local` of a pod leaves why each exchange failed, "" for one that passed, by node."""
    return folder / f"pair-check-{local}.json"


def write_json(path: Path, value: object) -> None:
    """Write a file that never exists in part."""
    unfinished = path.with_suffix(".part")
    unfinished.write_text(json.dumps(value))
    unfinished.replace(path)
