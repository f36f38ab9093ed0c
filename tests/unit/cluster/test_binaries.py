"""Which programs are built, and when they are rebuilt."""

import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from localcluster.binaries import (
    BY_PROFILE,
    KUBERNETES,
    KWOK_QUEUE,
    ON_DEMAND,
    PROGRAMS,
    fingerprint,
    patched_text,
)
from localcluster.errors import ClusterError
from localcluster.paths import CHECKOUT, Paths

TOOLS = Paths("full").tools


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """A copy of the pins that a test may change."""
    return Path(shutil.copytree(TOOLS, tmp_path / "tools"))


def test_kubernetes_reports_the_pinned_version() -> None:
    pinned = re.search(r"k8s\.io/kubernetes (v\S+)", (TOOLS / "kubernetes" / "go.mod").read_text())
    assert pinned is not None
    assert pinned[1] == KUBERNETES


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=str)
def test_every_program_has_pins_and_checksums(program) -> None:
    module = TOOLS / program.module
    assert (module / "go.sum").stat().st_size > 0
    if program.package.startswith("."):
        assert list((module / program.package).glob("*.go"))
    else:
        assert f'_ "{program.package}"' in (module / "tools.go").read_text()


def test_profiles_list_existing_programs() -> None:
    listed = {name for names in BY_PROFILE.values() for name in names}
    assert listed == set(PROGRAMS) - set(ON_DEMAND), "those that are built when a test starts them"


@pytest.mark.parametrize("file", ["go.mod", "go.sum"])
def test_a_changed_pin_causes_a_rebuild(tools: Path, file: str) -> None:
    before = fingerprint(PROGRAMS["kubelet"], tools, "go1.26.8")
    with (tools / "kubernetes" / file).open("a") as pins:
        pins.write("\n")
    assert fingerprint(PROGRAMS["kubelet"], tools, "go1.26.8") != before


def test_a_changed_source_rebuilds_only_its_own_program(tools: Path) -> None:
    pause, kubelet = PROGRAMS["pause"], PROGRAMS["kubelet"]
    before = [fingerprint(program, tools, "go1.26.8") for program in (pause, kubelet)]
    with (tools / "kubernetes" / "pause" / "main.go").open("a") as source:
        source.write("\n")
    after = [fingerprint(program, tools, "go1.26.8") for program in (pause, kubelet)]
    assert after[0] != before[0]
    assert after[1] == before[1]


def test_toolchain_and_build_flags_are_part_of_the_fingerprint() -> None:
    kubelet = PROGRAMS["kubelet"]
    before = fingerprint(kubelet, TOOLS, "go1.26.8")
    assert fingerprint(kubelet, TOOLS, "go1.26.9") != before
    assert fingerprint(replace(kubelet, ldflags=""), TOOLS, "go1.26.8") != before


def test_a_patch_is_part_of_the_fingerprint() -> None:
    kwok = PROGRAMS["kwok"]
    assert kwok.patch is not None
    changed = replace(kwok, patch=replace(kwok.patch, new="\treturn\n"))
    assert fingerprint(changed, TOOLS, "go1.26.8") != fingerprint(kwok, TOOLS, "go1.26.8")


@pytest.mark.parametrize("times", [0, 2])
def test_a_patch_that_does_not_apply_is_an_error(times: int) -> None:
    assert patched_text(KWOK_QUEUE, f"a\n{KWOK_QUEUE.old}b\n") == f"a\n{KWOK_QUEUE.new}b\n"
    with pytest.raises(ClusterError, match=r"the patch of sigs\.k8s\.io/kwok/pkg/utils/heap/heap\.go"):
        patched_text(KWOK_QUEUE, KWOK_QUEUE.old * times)


def test_no_pin_is_a_local_path() -> None:
    for path in (CHECKOUT / "cluster" / "tools").glob("*/go.mod"):
        assert not re.search(r"=>\s*[./]", path.read_text()), path
