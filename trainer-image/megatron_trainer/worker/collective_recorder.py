"""Reports to the launcher, on request, which collectives this rank has enqueued and waits for.

A thread answers: the main thread of a rank that hangs waits in C++ or on its device, without Python's lock.
"""

import contextlib
import json
import os
import pickle
import re
import socket
import threading
from pathlib import Path
from typing import Any

import torch
from torch.distributed import distributed_c10d

from megatron_trainer.health.collectives import Collectives, Waiting
from megatron_trainer.health.stacks import collectives_file, collectives_socket
from megatron_trainer.telemetry.reporter import STACKS_ENV

# torch's recorder reads the first that is set; its NCCL backend decides by the second alone whether to dump
# (ProcessGroupNCCL.hpp of torch 2.11).
_BUFFER_ENVS = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
_BUFFER_ENTRIES = "2000"
# The NCCL backend's own dump, when a collective times out: whether, and where, with the rank appended. Any of
# the names of the place may be set by the user.
_DUMP_ENV = "TORCH_NCCL_DUMP_ON_TIMEOUT"
_DUMP_FILE_ENVS = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
_DUMP_FOLDER = "flight-recorder"
_PEER = re.compile(r"(\d+)(<-|->)(\d+)")


def record_collectives(rank: int, save: Path | None) -> None:
    """Turn torch's flight recorder on and answer requests from now on. Before process groups are created.

    `save`: the directory of the checkpoints, None without one.
    """
    _configure(save)
    folder = os.environ.get(STACKS_ENV)
    if not folder:
        return
    address, answer = collectives_socket(Path(folder), rank), collectives_file(Path(folder), rank)
    for left in (address, answer):
        left.unlink(missing_ok=True)
    requests = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    requests.bind(str(address))
    threading.Thread(target=_serve, args=(requests, answer), daemon=True, name="collectives").start()


def _configure(save: Path | None) -> None:
    """Set what torch reads when process groups are created; the user's own values are kept.

    By default torch would dump below HOME, which is lost with the pod.
    """
    environ = os.environ
    entries = next((environ[name] for name in _BUFFER_ENVS if environ.get(name)), _BUFFER_ENTRIES)
    environ.update(dict.fromkeys(_BUFFER_ENVS, entries))
    environ.setdefault(_DUMP_ENV, "1")
    if save is None or any(environ.get(name) for name in _DUMP_FILE_ENVS):
        return
    environ[_DUMP_FILE_ENVS[0]] = str(save / _DUMP_FOLDER / "rank-")
    if environ.get("LOCAL_RANK", "0") == "0":
        # torch creates no folder. Without it there is no dump, which is no reason not to train.
        with contextlib.suppress(OSError):
            (save / _DUMP_FOLDER).mkdir(parents=True, exist_ok=True)


def _serve(requests: socket.socket, answer: Path) -> None:
    while requests.recv(16):
        # Without an answer the launcher decides by the stacks.
        with contextlib.suppress(OSError, RuntimeError, ValueError, KeyError):
            unfinished = answer.with_suffix(".part")
            unfinished.write_text(json.dumps(known_collectives().to_json()))
            unfinished.replace(answer)


def known_collectives() -> Collectives:
    """Return what this process has enqueued in its process groups. Raises RuntimeError of torch."""
    world = distributed_c10d._world
    groups = {world.pg_names[group]: group for group in world.pg_map}
    enqueued = {name: group._get_sequence_number_for_group() for name, group in groups.items()}
    backends = {backend for backend, _ in world.pg_map.values()}
    waiting = [
        _waiting(entry, groups)
        for backend in sorted(backends)
        for entry in _recorded(backend)
        if not entry["retired"] and entry["state"] != "completed" and entry["process_group"][0] in groups
    ]
    return Collectives(enqueued, tuple(waiting))


def _recorded(backend: str) -> list[dict[str, Any]]:
    """Entries of the flight recorder, of which torch has one for NCCL and one for all others."""
    module: Any = torch._C._distributed_c10d
    dump = module._dump_nccl_trace if "nccl" in backend else module._dump_fr_trace
    # Without stack traces: resolving them takes seconds.
    return pickle.loads(dump(True, False, False)).get("entries", [])  # type: ignore[no-any-return]


def _waiting(entry: dict[str, Any], groups: dict[str, Any]) -> Waiting:
    name, operation = entry["process_group"][0], entry["profiling_name"]
    ranks = distributed_c10d._world.pg_group_ranks[groups[name]]
    if entry["is_p2p"] and (match := _PEER.search(operation)):
        by_group_rank = {in_group: rank for rank, in_group in ranks.items()}
        peer = by_group_rank.get(int(match[3]))
        return Waiting(name, 0, operation, (), peer)
    return Waiting(name, entry["collective_seq_id"], operation, tuple(sorted(ranks)))
