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

_BUFFER_ENV = "TORCH_FR_BUFFER_SIZE"
_BUFFER_ENTRIES = "2000"
_PEER = re.compile(r"(\d+)(<-|->)(\d+)")


def record_collectives(rank: int) -> None:
    """Turn torch's flight recorder on and answer requests from now on. Before process groups are created."""
    os.environ.setdefault(_BUFFER_ENV, _BUFFER_ENTRIES)
    folder = os.environ.get(STACKS_ENV)
    if not folder:
        return
    address, answer = collectives_socket(Path(folder), rank), collectives_file(Path(folder), rank)
    for left in (address, answer):
        left.unlink(missing_ok=True)
    requests = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    requests.bind(str(address))
    threading.Thread(target=_serve, args=(requests, answer), daemon=True, name="collectives").start()


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
