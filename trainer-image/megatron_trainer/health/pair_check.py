"""The part of the preflight between nodes: a rank exchanges data with the same rank of other nodes.

A process per rank, which the launcher starts when all pods have met and before the run's process groups.
"""

import json
import os
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

from megatron_trainer.health.device_check import (
    local_rank,
    new_group,
    new_tensor,
    on_gpu,
    start_device,
    sum_over,
)
from megatron_trainer.health.preflight_files import EXCHANGE_SECONDS, result_file, write_json
from megatron_trainer.telemetry.reporter import PAIRS_ENV, STACKS_ENV


def run() -> int:
    """Exchange data with one node after the other and leave the results. Returns 0.

    The variable PAIRS_ENV is a JSON object: `key` of this check, `node`, `peers`, the node of each turn or
    null, and `start`, the seconds that nodes may start apart. The limit of each turn is counted from the
    start, so that a node whose partner in one turn did not answer is waited for in the next.
    """
    plan = json.loads(os.environ[PAIRS_ENV])
    start_device()
    start, results = time.monotonic(), {}
    for number, peer in enumerate(plan["peers"], 1):
        if peer is not None:
            left = start + plan["start"] + number * EXCHANGE_SECONDS - time.monotonic()
            results[peer] = _try_exchange(plan["key"], plan["node"], peer, left)
    write_json(result_file(Path(os.environ[STACKS_ENV]), local_rank()), results)
    return 0


def _try_exchange(key: str, node: int, peer: int, limit: float) -> str:
    """Why an exchange failed; empty if it passed. A thread, since not every wait in a driver has a limit."""
    place, found = int(node > peer), [f"no answer within {limit:.0f} s"]
    tensor = new_tensor(place)

    def work() -> None:
        try:
            if on_gpu():
                torch.cuda.set_device(local_rank())
            exchange(f"{key}/{min(node, peer)}-{max(node, peer)}", place, tensor, limit)
            found[0] = ""
        except Exception as error:
            found[0] = " ".join(f"{type(error).__name__}: {error}".split())[:200]

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(limit)
    return found[0]


def exchange(key: str, place: int, tensor: torch.Tensor, limit: float) -> None:
    """Sum `tensor`, of any shape, over both nodes. Raises FaultError, or RuntimeError of torch.

    `place` is 0 or 1, this node's rank in the pair, and `limit` the seconds of each operation.
    """
    store: Any = torch.distributed.TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        is_master=False,
        timeout=timedelta(seconds=max(limit, 1.0)),
        wait_for_workers=False,
    )
    store = torch.distributed.PrefixStore(f"{key}/{local_rank()}", store)
    sum_over(new_group(store, place, 2, limit), tensor, 3.0, limit)


if __name__ == "__main__":
    code = run()
    sys.stdout.flush()
    sys.stderr.flush()
    # Without the destructors of a group that still waits.
    os._exit(code)
