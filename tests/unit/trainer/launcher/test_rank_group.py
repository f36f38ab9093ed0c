"""What the ranks of a pod are started with, by a real fork server; the gang is a stand-in."""

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from megatron_trainer.launcher.cpu_binding import format_cpus
from megatron_trainer.launcher.fork_server import ForkServer, Programs
from megatron_trainer.launcher.rank_group import RankGroup
from torch.distributed.elastic.agent.server.api import Worker, WorkerGroup, WorkerSpec

pytestmark = pytest.mark.forks


def write_affinity() -> int:
    folder, rank = Path(os.environ["AFFINITY_FOLDER"]), os.environ["LOCAL_RANK"]
    (folder / rank).write_text(format_cpus(os.sched_getaffinity(0)))
    return 0


@pytest.fixture
def fork_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ForkServer]:
    monkeypatch.setenv("AFFINITY_FOLDER", str(tmp_path))
    fork_server = ForkServer(lambda: Programs(rank=write_affinity, preflight=lambda: 0))
    yield fork_server
    fork_server.close()


def test_each_rank_is_started_on_the_cores_that_were_chosen_for_it(
    fork_server: ForkServer, tmp_path: Path
) -> None:
    plan = SimpleNamespace(iteration=None, skip=(), owner="", preflight=False)
    gang: Any = SimpleNamespace(plan=plan, generation=1)
    telemetry: Any = SimpleNamespace(start_generation=lambda *_: None)
    spec = WorkerSpec(role="rank", local_world_size=2, rdzv_handler=gang, entrypoint="rank")
    own = os.sched_getaffinity(0)
    first = str(min(own))
    ranks = RankGroup(spec, gang, fork_server, telemetry, telemetry, {1: first})
    group = WorkerGroup(spec)
    group.workers = [Worker(local_rank=i, global_rank=i, world_size=2) for i in range(2)]
    group.group_rank, group.master_addr, group.master_port = 0, "127.0.0.1", 1
    ranks._start_workers(group)
    while len(fork_server.exited(1.0)) < 2:
        pass
    assert [(tmp_path / str(rank)).read_text() for rank in range(2)] == [format_cpus(own), first]
