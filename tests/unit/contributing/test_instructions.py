"""CONTRIBUTING.md names files that exist, and a Megatron upgrade finds every place that names a version."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "CONTRIBUTING.md").read_text()

PACKAGES = {
    "megatron-core": "trainer-image/requirements-cpu.in",
    "megatron-bridge": "trainer-image/requirements-bridge.in",
}


def tracked_files() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / name for name in listed.stdout.split("\0") if name]


def pinned_version(package: str) -> str:
    found = re.search(rf"^{package}==([\d.]+)", (ROOT / PACKAGES[package]).read_text(), re.MULTILINE)
    assert found is not None
    return found[1]


def test_every_file_that_the_page_names_exists() -> None:
    named = set(re.findall(r"`([\w.-]+/[\w./-]+)`", PAGE))
    assert len(named) > 20
    missing = {name for name in named if not (ROOT / name).exists()}
    assert not missing


def test_every_make_target_that_the_page_names_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {target for line in re.findall(r"make ((?:[a-z-]+ ?)+)", PAGE) for target in line.split()[:1]}
    assert {"check", "test", "lock", "lint"} <= named
    assert named <= targets


@pytest.mark.parametrize("package", PACKAGES)
def test_no_file_names_another_version_than_the_pinned_one(package: str) -> None:
    """After an upgrade this lists every place that still names the old version."""
    name = package.replace("-", "[-_ ]")
    if package == "megatron-core":
        name = f"(?:{name}|Megatron)"
    pattern = re.compile(rf"\b{name}(?: |==| ==)v?(\d+\.\d+\.\d+)", re.IGNORECASE)
    version, stale, places = pinned_version(package), [], 0
    for path in tracked_files():
        if not path.is_file() or path.suffix in {".png", ".sum", ".mod"} or path.name == "CHANGELOG.md":
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            for found in pattern.findall(line):
                places += 1
                if found != version:
                    stale.append(f"{path.relative_to(ROOT)}:{number}: {package} {found}, pinned is {version}")
    assert places > 1, "the pattern finds the pins themselves"
    assert not stale


def test_the_gpu_image_has_the_same_megatron_as_the_cpu_image() -> None:
    for name in ("gpu", "bridge-gpu", "ngc"):
        pins = (ROOT / "trainer-image" / f"requirements-{name}.txt").read_text()
        assert f"\nmegatron-core=={pinned_version('megatron-core')} " in pins, name
