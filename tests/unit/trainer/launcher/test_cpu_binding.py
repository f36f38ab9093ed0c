"""Cores of ranks near their GPUs, from a folder tree that imitates sysfs."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from megatron_trainer.launcher.cpu_binding import choose, format_cpus, parse_cpus
from megatron_trainer.launcher.fork_server import ForkServer, Programs
from megatron_trainer.telemetry.reporter import CPUS_ENV

HOST = frozenset(range(192))
LEFT = ["00000000:1A:00.0", "00000000:3b:00.0"]
RIGHT = ["00000000:9A:00.0", "00000000:BB:00.0"]


def add_device(sysfs: Path, name: str, node: str) -> None:
    folder = sysfs / "bus/pci/devices" / name
    folder.mkdir(parents=True)
    (folder / "numa_node").write_text(f"{node}\n")


@pytest.fixture
def sysfs(tmp_path: Path) -> Path:
    """Two sockets of 48 cores with two threads each, two GPUs on each."""
    for node, cpus in ((0, "0-47,96-143"), (1, "48-95,144-191")):
        folder = tmp_path / f"devices/system/node/node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(f"{cpus}\n")
    for name, node in (
        ("0000:1a:00.0", "0"),
        ("0000:3b:00.0", "0"),
        ("0000:9a:00.0", "1"),
        ("0000:bb:00.0", "1"),
    ):
        add_device(tmp_path, name, node)
    return tmp_path


def test_ranks_share_the_cores_of_their_gpus_node(sysfs: Path) -> None:
    binding = choose([LEFT[0], RIGHT[0], LEFT[1], RIGHT[1]], 2, HOST, sysfs)
    assert binding.cpus == {0: "0-47,96-143", 1: "48-95,144-191", 2: "0-47,96-143", 3: "48-95,144-191"}
    assert binding.kept == ()


def test_only_cores_of_the_pod_are_used(sysfs: Path) -> None:
    binding = choose([*LEFT, *RIGHT], 2, frozenset({*range(10), *range(50, 60)}), sysfs)
    assert binding.cpus == {0: "0-9", 1: "0-9", 2: "50-59", 3: "50-59"}


def test_a_node_with_too_few_cores_for_ranks_and_data_loaders_binds_none_of_its_ranks(sysfs: Path) -> None:
    allowed = frozenset({*range(5), *range(50, 80)})
    binding = choose([*LEFT, *RIGHT], 2, allowed, sysfs)
    assert binding.cpus == {2: "50-79", 3: "50-79"}
    assert binding.kept == ("5 cores of NUMA node 0 are the pod's, its 2 ranks with 2 workers each need 6",)
    assert 0 in choose([*LEFT, *RIGHT], 1, allowed, sysfs).cpus, "five cores are enough for one worker each"


def test_without_an_answer_of_nvml_or_a_node_in_sysfs_nothing_happens(sysfs: Path) -> None:
    add_device(sysfs, "0000:0c:00.0", "-1")
    binding = choose([None, "00000000:0C:00.0", "00000000:FF:00.0", None], 0, HOST, sysfs)
    assert binding.cpus == {}
    assert binding.kept == (
        "NVML does not name the devices of local ranks 0, 3",
        "sysfs has no NUMA node of devices 00000000:0C:00.0, 00000000:FF:00.0",
    )
    assert choose([LEFT[0]], 0, HOST, sysfs / "nowhere").cpus == {}


def test_a_domain_of_more_than_four_digits_is_found(sysfs: Path) -> None:
    add_device(sysfs, "10002:00:00.0", "1")
    assert choose(["00010002:00:00.0"], 0, HOST, sysfs).cpus == {0: "48-95,144-191"}


@pytest.mark.parametrize(
    ("text", "cpus"), [("", set()), ("3", {3}), ("0-2,7\n", {0, 1, 2, 7}), ("1,3,5", {1, 3, 5})]
)
def test_the_kernels_notation_is_read_and_written(text: str, cpus: set[int]) -> None:
    assert parse_cpus(text) == cpus
    assert format_cpus(cpus) == text.strip()


def test_the_log_has_one_line_with_cores_and_reasons(sysfs: Path) -> None:
    assert choose([LEFT[0], None], 0, HOST, sysfs).describe() == (
        "bound to the cores of its GPU's NUMA node: local rank 0 on 0-47,96-143. "
        "not bound to cores: NVML does not name the devices of local ranks 1"
    )


def write_affinity() -> int:
    Path(os.environ["AFFINITY_FILE"]).write_text(format_cpus(os.sched_getaffinity(0)))
    return 0


@pytest.fixture
def fork_server() -> Iterator[ForkServer]:
    fork_server = ForkServer(lambda: Programs(rank=write_affinity, preflight=lambda: 0))
    yield fork_server
    fork_server.close()


@pytest.mark.forks
def test_a_rank_runs_on_its_cores_and_the_others_stay_where_they_were(
    fork_server: ForkServer, tmp_path: Path
) -> None:
    own = os.sched_getaffinity(0)
    last = str(max(own))
    environments = {
        rank: {"AFFINITY_FILE": str(tmp_path / str(rank)), CPUS_ENV: cpus}
        for rank, cpus in enumerate((last, "", "100000"))
    }
    fork_server.start(environments)
    while len(fork_server.exited(1.0)) < len(environments):
        pass
    found = [(tmp_path / str(rank)).read_text() for rank in environments]
    everywhere = format_cpus(own)
    assert found == [last, everywhere, everywhere], "the third has only cores that are not there"
