"""Control groups of a node on both cgroup versions, simulated with ordinary folders."""

from pathlib import Path

import pytest
from localcluster import cgroups

HYBRID = """tmpfs /sys/fs/cgroup tmpfs rw 0 0
cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,cpu,cpuacct 0 0
cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0
cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0
"""


def test_hierarchies_are_grouped_by_type() -> None:
    found = cgroups.hierarchies(HYBRID)
    assert [path.name for path in found["cgroup"]] == ["cpu,cpuacct", "memory"]
    assert [path.name for path in found["cgroup2"]] == ["unified"]


@pytest.fixture
def version_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("cpuset", "memory"):
        (tmp_path / name).mkdir()
    (tmp_path / "cpuset" / "cpuset.cpus").write_text("0-1\n")
    (tmp_path / "cpuset" / "cpuset.mems").write_text("0\n")
    found = {"cgroup": [tmp_path / "cpuset", tmp_path / "memory"], "cgroup2": []}
    monkeypatch.setattr(cgroups, "mounted", lambda: found)
    return tmp_path


@pytest.fixture
def version_2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")
    (tmp_path / "cgroup.subtree_control").touch()
    monkeypatch.setattr(cgroups, "mounted", lambda: {"cgroup": [], "cgroup2": [tmp_path]})
    return tmp_path


def test_a_new_cpuset_inherits_the_cpus_of_its_parent(version_1: Path) -> None:
    cgroups.create("node-0")
    assert (version_1 / "cpuset" / "megatron-node-0" / "cpuset.cpus").read_text() == "0-1\n"
    assert (version_1 / "cpuset" / "megatron-node-0" / "cpuset.mems").read_text() == "0\n"


def test_missing_controllers_are_named(version_1: Path) -> None:
    assert version_1.exists()
    assert cgroups.missing_controllers() == ["cpu", "pids"]


def test_version_2_offers_all_in_one_hierarchy(version_2: Path) -> None:
    assert cgroups.missing_controllers() == []
    cgroups.create("node-0")
    assert (version_2 / "megatron-node-0").is_dir()


def test_removing_deletes_only_the_subgroups(version_1: Path) -> None:
    (version_1 / "memory" / "somebody-elses").mkdir()
    (version_1 / "memory" / "megatron-node-1" / "kubepods" / "pod1").mkdir(parents=True)
    cgroups.remove()
    assert sorted(path.name for path in (version_1 / "memory").iterdir()) == ["somebody-elses"]
