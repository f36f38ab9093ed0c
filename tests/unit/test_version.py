"""VERSION is the only place where a release number is decided; every other mention equals it."""

import importlib.metadata
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from scripts import set_version
from testkit import last_release

ROOT = Path(__file__).parents[2]
VERSION = (ROOT / "VERSION").read_text().strip()
IN_PACKAGES = VERSION.replace("-dev", ".dev0")
"""As PEP 440 normalizes it."""

PROJECTS = {
    "megatron-operator": ROOT,
    "megatron-contract": ROOT / "contract",
    "megatron-trainer": ROOT / "trainer-image",
    "megatron-local-cluster": ROOT / "cluster",
}


def test_version_is_a_semantic_version() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+(-dev)?", VERSION)


@pytest.mark.parametrize("name", PROJECTS)
def test_packages_read_the_version_and_declare_the_license(name: str) -> None:
    project = tomllib.loads((PROJECTS[name] / "pyproject.toml").read_text())
    assert project["project"]["name"] == name
    assert project["project"]["license"] == "Apache-2.0"
    assert "version" in project["project"]["dynamic"]
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"file": ["VERSION"]}
    assert (PROJECTS[name] / "VERSION").read_text().strip() == VERSION


@pytest.mark.parametrize("name", ["megatron-operator", "megatron-contract", "megatron-local-cluster"])
def test_installed_packages_have_the_version(name: str) -> None:
    assert importlib.metadata.version(name) == IN_PACKAGES, "run `make setup`"


def test_chart_and_its_default_image_have_the_version() -> None:
    chart = yaml.safe_load((ROOT / "charts/megatron-operator/Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (VERSION, VERSION)
    values = yaml.safe_load((ROOT / "charts/megatron-operator/values.yaml").read_text())
    assert values["image"] == f"megatron-operator:{VERSION}"


@pytest.mark.parametrize(
    "dockerfile", ["operator/Dockerfile", "trainer-image/Dockerfile", "trainer-image/Dockerfile.gpu"]
)
def test_images_are_labelled_with_the_version_and_the_license(dockerfile: str) -> None:
    text = (ROOT / dockerfile).read_text()
    assert f"org.opencontainers.image.version={VERSION} " in text
    assert "org.opencontainers.image.licenses=Apache-2.0" in text


def test_the_installation_page_names_images_of_the_version() -> None:
    page = (ROOT / "docs" / "installation.md").read_text()
    tags = re.findall(r"/megatron-(?:operator|trainer|trainer-bridge):([\w.-]+)", page)
    assert len(tags) > 5
    assert {*tags} == {VERSION}


def test_changelog_has_a_section_for_the_version() -> None:
    headings = re.findall(r"^## \[(.*?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    released = last_release.VERSION if VERSION.endswith("-dev") else VERSION
    assert headings[:2] == ["Unreleased", released]


def test_every_file_that_names_the_version_is_one_that_a_new_version_changes() -> None:
    named = re.compile(
        rf"(?:megatron-[a-z-]+[:-]|^(?:version|appVersion): |[./]version[=:] ?){re.escape(VERSION)}", re.M
    )
    paths = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    texts = {
        ROOT / name
        for name in paths.stdout.split("\0")
        if name.endswith((".md", ".py", ".sh", ".yaml", "file", ".gpu"))
    }
    found = {path for path in texts if path.is_file() and named.search(path.read_text())}
    changed = {ROOT / name for name in set_version.FILES} | {*ROOT.glob(set_version.GOLDEN)}
    assert found == changed - {ROOT / "VERSION"}


def test_license_is_the_standard_text() -> None:
    text = (ROOT / "LICENSE").read_text()
    assert "Apache License\n                           Version 2.0, January 2004" in text
    assert "Copyright [yyyy] [name of copyright owner]" in text, "the appendix is part of the text, unfilled"
