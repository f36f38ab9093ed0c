"""What `make bench-weights` needs of a machine, and what it writes; folders stand for control groups."""

from pathlib import Path

import pytest
from localcluster import cgroups

from bench import memory_limit, weights_memory

PAGE = Path(__file__).parents[3] / "docs" / "weights.md"


def mounts(monkeypatch: pytest.MonkeyPatch, version_1: list[Path], version_2: list[Path]) -> None:
    monkeypatch.setattr(cgroups, "mounted", lambda: {"cgroup": version_1, "cgroup2": version_2})


def test_a_machine_that_limits_no_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cgroup.controllers").write_text("hugetlb\n")
    mounts(monkeypatch, [tmp_path / "cpu"], [tmp_path])
    with pytest.raises(SystemExit, match="no control groups with the controller `memory`"):
        memory_limit.run(["true"], None, {})


def test_a_user_who_may_create_no_group_gets_an_error_that_names_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts(monkeypatch, [tmp_path / "absent" / "memory"], [])
    with pytest.raises(SystemExit, match="control groups need root"):
        memory_limit.run(["true"], None, {})


def test_a_kernel_that_keeps_no_peak_is_refused_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpu memory\n")
    mounts(monkeypatch, [], [tmp_path])
    with pytest.raises(SystemExit, match=r"no memory\.peak.*Linux 5\.19"):
        memory_limit.run(["true"], 1 << 30, {})
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == []


def test_the_table_of_memory_is_replaced_and_the_rest_of_the_page_stays() -> None:
    page = PAGE.read_text(encoding="utf-8")
    changed = weights_memory.written(page, ["| a | b |"])
    assert "| a | b |" in changed
    assert changed.partition(weights_memory.END)[2] == page.partition(weights_memory.END)[2]
    assert changed.partition(weights_memory.BEGIN)[0] == page.partition(weights_memory.BEGIN)[0]
