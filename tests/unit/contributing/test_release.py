"""What a release contains, and how its version is set."""

import hashlib
import re
import shutil
import tarfile
from pathlib import Path

import pytest
import yaml

from scripts import release, set_version

ROOT = Path(__file__).parents[3]


def installed_locks(image: str) -> set[Path]:
    """The lock files that an image's Dockerfile installs with the build arguments of the release workflow."""
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yaml").read_text())
    built = {each["image"]: each for each in workflow["jobs"]["images"]["strategy"]["matrix"]["include"]}
    entry = built.get(image, {"file": "trainer-image/Dockerfile"})
    dockerfile = ROOT / entry["file"]
    arguments = dict(re.findall(r"^ARG (\w+)=(.*)$", dockerfile.read_text(), re.M))
    arguments |= dict(line.split("=", 1) for line in entry.get("arguments", "").split())
    given = {dockerfile.parent / value for value in arguments.values() if value.endswith(".txt")}
    copied = re.findall(r"^COPY (\S+\.txt) \S+$", dockerfile.read_text(), re.M)
    return given or {ROOT / each for each in copied}


def packages(lock: Path) -> set[str]:
    """The names and versions of a lock file's packages."""
    pins = re.findall(r"^([\w.-]+)(?:\[.*\])?==([^\s;]+)", lock.read_text(), re.M)
    return {f"{release.normalized_name(name)} {version}" for name, version in pins}


@pytest.mark.parametrize("image", release.LOCKS)
def test_a_bill_of_materials_names_every_package_that_an_image_installs(image: str) -> None:
    locks = installed_locks(image)
    bill = release.bill_of_materials(image, "1.2.3", release.lock_text(image), 1_800_000_000)
    found = [f"{each['name']} {each['version']}" for each in bill["components"]]
    assert set(found) == set[str]().union(*map(packages, locks))
    assert len(found) > 10
    assert len({each["bom-ref"] for each in bill["components"]}) == len(found), "references are unique"
    assert bill["metadata"]["timestamp"] == "2027-01-15T08:00:00Z"


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        ("megatron-operator", {"kopf"}),
        ("megatron-trainer", {"transformer-engine", "wandb"}),
        ("megatron-trainer-bridge", {"transformer-engine", "megatron-bridge", "wandb"}),
        ("megatron-trainer-cpu", {"torch", "wandb"}),
    ],
)
def test_a_bill_has_the_packages_that_an_image_is_known_for(image: str, expected: set[str]) -> None:
    assert expected <= {each["name"] for each in release.components(release.lock_text(image))}


def test_a_package_is_named_as_its_index_does() -> None:
    (found,) = release.components("Zope.Interface_x[extra]==1.0 \\\n    --hash=sha256:ab\n")
    assert found["purl"] == "pkg:pypi/zope-interface-x@1.0"


def test_each_wheel_of_the_checkout_is_built() -> None:
    projects = {path.parent.relative_to(ROOT).as_posix() for path in ROOT.glob("*/pyproject.toml")}
    assert {*projects, "."} - {"cluster"} == set(release.PROJECTS), "the local cluster is not released"


@pytest.mark.parametrize(("tag", "version"), [("", "1.2.3"), ("", "1.2.3-dev"), ("v1.2.3", "1.2.3")])
def test_a_commit_without_a_tag_or_with_that_of_its_version_is_built(tag: str, version: str) -> None:
    release.check_tag(tag, version)


@pytest.mark.parametrize(
    ("tag", "version", "message"),
    [
        ("v1.2.4", "1.2.3", "VERSION is 1.2.3, the tag v1.2.4"),
        ("v1.2.3", "1.2.3-dev", "VERSION is 1.2.3-dev, the tag v1.2.3"),
        ("v1.2.3-dev", "1.2.3-dev", "1.2.3-dev is no release"),
    ],
)
def test_a_tag_of_another_version_or_of_none_that_is_released_is_refused(
    tag: str, version: str, message: str
) -> None:
    with pytest.raises(release.ReleaseError, match=re.escape(message)):
        release.check_tag(tag, version)


IMAGES = {name: f"ghcr.io/owner/{name}@sha256:{number:064x}" for number, name in enumerate(release.VALUES)}


def test_the_chart_of_a_release_installs_its_images_by_digest() -> None:
    values = (ROOT / "charts" / "megatron-operator" / "values.yaml").read_text()
    named = yaml.safe_load(release.name_images(values, release.read_images("\n".join(IMAGES.values()))))
    before = yaml.safe_load(values)
    assert named["image"] == IMAGES["megatron-operator"]
    assert named["platform"] == {
        "image": IMAGES["megatron-trainer"],
        "bridgeImage": IMAGES["megatron-trainer-bridge"],
    }
    others = {key: value for key, value in before.items() if key not in ("image", "platform")}
    assert {key: named[key] for key in others} == others


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (list(IMAGES.values())[:2], "no digest of megatron-trainer-bridge"),
        (["ghcr.io/owner/megatron-operator:1.0"], "megatron-operator:1.0: write REGISTRY/NAME@sha256:DIGEST"),
        (["ghcr.io/owner/other@sha256:" + "0" * 64], "once for megatron-operator, megatron-trainer"),
        ([*IMAGES.values(), IMAGES["megatron-operator"]], "once for megatron-operator"),
    ],
)
def test_images_without_a_digest_for_each_are_refused(lines: list[str], message: str) -> None:
    with pytest.raises(release.ReleaseError, match=re.escape(message)):
        release.read_images("\n".join(lines))


def test_a_release_has_wheels_chart_crd_and_bills_with_their_checksums(tmp_path: Path) -> None:
    built = ROOT / ".cluster" / "bin" / "helm"
    helm = str(built) if built.exists() else shutil.which("helm")
    if helm is None:
        pytest.skip("no helm: neither .cluster/bin/helm (built by `make cluster-up`) nor one on PATH")
    files = release.build(tmp_path / "dist", helm, dirty=True, images=IMAGES)
    version = (ROOT / "VERSION").read_text().strip()
    names = {path.name for path in files}
    assert {f"{image}-{version}.cdx.json" for image in release.LOCKS} <= names
    assert {f"megatron-operator-{version}.tgz", "megatronrecipes.yaml", "SHA256SUMS"} <= names
    assert {name.split("-")[0] for name in names if name.endswith(".whl")} == {
        "megatron_contract",
        "megatron_operator",
        "megatron_trainer",
    }
    with tarfile.open(tmp_path / "dist" / f"megatron-operator-{version}.tgz") as chart:
        member = chart.extractfile("megatron-operator/values.yaml")
        assert member is not None
        assert yaml.safe_load(member)["image"] == IMAGES["megatron-operator"]
    sums = (tmp_path / "dist" / "SHA256SUMS").read_text().split()
    for digest, name in zip(sums[::2], sums[1::2], strict=True):
        assert hashlib.sha256((tmp_path / "dist" / name).read_bytes()).hexdigest() == digest


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the files that a new version changes."""
    golden = [path.relative_to(ROOT) for path in ROOT.glob(set_version.GOLDEN)]
    for name in (*set_version.FILES, *golden, "CHANGELOG.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def places(tree: Path, version: str) -> int:
    """How often the files of a tree name a version, and no other that begins with it."""
    texts = [path.read_text() for path in tree.rglob("*") if path.is_file() and path.name != "CHANGELOG.md"]
    return sum(len(re.findall(rf"(?<![\d.]){re.escape(version)}(?![\d.-])", text)) for text in texts)


def test_a_development_version_becomes_that_of_a_release_and_the_next_one(tree: Path) -> None:
    (before,) = (tree / "VERSION").read_text().split()
    count, changelog = places(tree, before), (tree / "CHANGELOG.md").read_text()
    set_version.set_version(tree, "98.0.0-dev", "2030-01-02")
    assert (tree / "CHANGELOG.md").read_text() == changelog
    set_version.set_version(tree, "98.0.0", "2030-01-02")
    assert places(tree, "98.0.0") == count > 20
    assert places(tree, before) == places(tree, "98.0.0-dev") == 0
    unreleased, heading = "## [Unreleased]\n", "\n## [98.0.0] - 2030-01-02\n"
    assert (tree / "CHANGELOG.md").read_text() == changelog.replace(unreleased, unreleased + heading)
    set_version.set_version(tree, "98.1.0-dev", "2030-01-03")
    assert (tree / "VERSION").read_text() == "98.1.0-dev\n"


@pytest.mark.parametrize(
    ("version", "message"),
    [
        ("v98.0.0", "is no version; give one such as"),
        ("98.0.0-rc1", "is no version; give one such as"),
        ("0.0.1", "0.0.1 is not above"),
    ],
)
def test_a_version_that_cannot_be_set_changes_no_file(tree: Path, version: str, message: str) -> None:
    before = (tree / "VERSION").read_text()
    with pytest.raises(set_version.VersionError, match=message):
        set_version.set_version(tree, version, "2030-01-02")
    assert (tree / "VERSION").read_text() == before


def test_the_version_that_is_set_already_is_not_above_itself_nor_is_its_development_version(
    tree: Path,
) -> None:
    set_version.set_version(tree, "98.0.0", "2030-01-02")
    for version in ("98.0.0", "98.0.0-dev"):
        with pytest.raises(set_version.VersionError, match="is not above"):
            set_version.set_version(tree, version, "2030-01-02")


def test_a_file_without_the_version_stops_it_before_another_is_written(tree: Path) -> None:
    (tree / "operator" / "Dockerfile").write_text("FROM scratch\n")
    before = (tree / "VERSION").read_text()
    with pytest.raises(set_version.VersionError, match="operator/Dockerfile does not name"):
        set_version.set_version(tree, "98.0.0", "2030-01-02")
    assert (tree / "VERSION").read_text() == before
