"""Reads recorded curves back, with the readers of TensorBoard and wandb, in a process that has them.

`python curves.py tensorboard FOLDER` and `python curves.py wandb FILE` print a JSON object: name of a
curve -> list of [iteration, value].
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

Curves = dict[str, list[tuple[int, float]]]

PACKAGES = {"tensorboard": "tracking-tests", "wandb": "tracking"}


def read_curves(kind: str, path: Path) -> Curves:
    """Read the curves of TensorBoard's folder or wandb's file `path`."""
    environment = os.environ | {"PYTHONPATH": str(Path(sys.prefix) / PACKAGES[kind])}
    output = subprocess.run(
        [sys.executable, __file__, kind, str(path)], env=environment, check=True, stdout=subprocess.PIPE
    ).stdout
    return {name: [(step, value) for step, value in points] for name, points in json.loads(output).items()}


def _read_tensorboard(path: str) -> Curves:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # type: ignore

    events = EventAccumulator(path, size_guidance={"scalars": 0})
    events.Reload()
    return {
        name: [(each.step, each.value) for each in events.Scalars(name)] for name in events.Tags()["scalars"]
    }


def _read_wandb(path: str) -> Curves:
    curves: Curves = {}
    for record in _records(Path(path).read_bytes()):
        if record.WhichOneof("record_type") == "history":
            values = {
                "/".join(item.nested_key) or item.key: json.loads(item.value_json)
                for item in record.history.item
            }
            for name, value in values.items():
                if not name.startswith("_"):
                    curves.setdefault(name, []).append((record.history.step.num, value))
    return curves


def _records(data: bytes) -> list[Any]:
    """The records of a file in LevelDB's log format: 7 bytes in front, blocks of 32 KiB."""
    from wandb.proto import wandb_internal_pb2  # type: ignore[import-not-found]

    found, whole, position = [], b"", 7
    while position + 7 <= len(data):
        left = 32768 - position % 32768
        if left < 7:
            position += left
            continue
        length, kind = int.from_bytes(data[position + 4 : position + 6], "little"), data[position + 6]
        if kind == 0:
            break
        whole += data[position + 7 : position + 7 + length]
        position += 7 + length
        # 1: a whole record, 4: the last part of one.
        if kind in (1, 4):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(whole)
            found.append(record)
            whole = b""
    return found


if __name__ == "__main__":
    # Its folder has modules of the tests.
    sys.path.pop(0)
    reader = {"tensorboard": _read_tensorboard, "wandb": _read_wandb}[sys.argv[1]]
    json.dump(reader(sys.argv[2]), sys.stdout)
