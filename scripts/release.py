"""Builds everything that a release has, besides images, into dist/: `make release`.

Wheels of operator, contract and trainer, the chart, the CRD, a bill of materials (CycloneDX) of each image's
locked packages, and SHA256SUMS of all of it. Images are built for each architecture by the release workflow;
with `--images` the chart has their digests as defaults.
"""

import argparse
import hashlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[1]
PROJECTS: Final = ("contract", ".", "trainer-image")
_TRACKING: Final = "trainer-image/requirements-tracking.txt"
LOCKS: Final = {
    "megatron-operator": ("requirements/operator.txt",),
    "megatron-trainer": ("trainer-image/requirements-gpu.txt", _TRACKING),
    "megatron-trainer-bridge": (
        "trainer-image/requirements-bridge-gpu.txt",
        "trainer-image/requirements-bridge.txt",
        _TRACKING,
    ),
    "megatron-trainer-cpu": ("trainer-image/requirements-cpu.txt", _TRACKING),
}
"""Image -> the lock files that are installed in it. Packages of the base images are in none of them."""
VALUES: Final = {
    "megatron-operator": ("image",),
    "megatron-trainer": ("platform", "image"),
    "megatron-trainer-bridge": ("platform", "bridgeImage"),
}
"""Image -> the value of the chart that names it."""
_DIGEST: Final = re.compile(r"(?:[^\s@]+/)?([^\s/@:]+)@sha256:[0-9a-f]{64}")
_PINNED: Final = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^\]]*\])?==([^\s;\\]+)", re.M)


class ReleaseError(Exception):
    """A release cannot be built from this checkout."""


def normalized_name(name: str) -> str:
    """The name of a package as its index has it.

    https://packaging.python.org/en/latest/specifications/name-normalization/
    """
    return re.sub(r"[-_.]+", "-", name).lower()


def components(lock: str) -> Iterator[dict[str, str]]:
    """The packages of lock files, as components of CycloneDX."""
    for name, version in sorted(set(_PINNED.findall(lock))):
        normalized = normalized_name(name)
        purl = f"pkg:pypi/{normalized}@{version}"
        yield {
            "type": "library",
            "bom-ref": purl,
            "name": normalized,
            "version": version,
            "purl": purl,
        }


def lock_text(image: str) -> str:
    """The lock files of an image, one after the other."""
    return "".join((ROOT / lock).read_text() for lock in LOCKS[image])


def bill_of_materials(image: str, version: str, lock: str, committed: int) -> dict[str, Any]:
    """CycloneDX 1.6 of an image's locked packages. `committed` is in seconds since the epoch.

    A package that two lock files pin differently, for two folders of the image, is there twice.

    https://cyclonedx.org/docs/1.6/json/
    """
    digest = hashlib.sha256(f"{image} {version} {lock}".encode()).hexdigest()
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.UUID(digest[:32], version=4)}",
        "version": 1,
        "metadata": {
            "timestamp": datetime.fromtimestamp(committed, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "component": {"type": "container", "bom-ref": image, "name": image, "version": version},
        },
        "components": list(components(lock)),
    }


def check_tag(tag: str, version: str) -> None:
    """Raise ReleaseError for a tag of another version than that of VERSION, or of a development version.

    A commit without a tag, which is `""`, is of any version.
    """
    if tag not in ("", f"v{version}"):
        raise ReleaseError(f"VERSION is {version}, the tag {tag}; set the version by make set-version")
    if tag and version.endswith("-dev"):
        raise ReleaseError(f"{version} is no release; delete the tag {tag}, and see CONTRIBUTING.md")


def read_images(text: str) -> dict[str, str]:
    """Lines `REGISTRY/NAME@sha256:DIGEST`, one for each image of VALUES, by name. Raises ReleaseError."""
    found: dict[str, str] = {}
    for line in text.split():
        match = _DIGEST.fullmatch(line)
        if match is None or match[1] not in VALUES or match[1] in found:
            raise ReleaseError(f"{line}: write REGISTRY/NAME@sha256:DIGEST, once for {', '.join(VALUES)}")
        found[match[1]] = line
    if missing := VALUES.keys() - found.keys():
        raise ReleaseError(f"no digest of {', '.join(sorted(missing))}")
    return found


def name_images(values: str, images: dict[str, str]) -> str:
    """`values.yaml` with the images as defaults, and its comments as they are. Raises ReleaseError."""
    platform = "".join(
        f"\n  {VALUES[name][1]}: {image}" for name, image in images.items() if VALUES[name][1:]
    )
    for pattern, line in (
        (r"^image: .*$", f"image: {images['megatron-operator']}"),
        (r"^platform: \{\}$", f"platform:{platform}"),
    ):
        values, replaced = re.subn(pattern, line, values, flags=re.M)
        if replaced != 1:
            raise ReleaseError(f"values.yaml has {replaced} lines {pattern}")
    return values


def build(target: Path, helm: str, *, dirty: bool, images: dict[str, str] | None = None) -> list[Path]:
    """Build all files into an empty `target`; returns them. Raises ReleaseError.

    `images` are those of `read_images`, which the chart installs; None leaves its defaults.
    """
    version = (ROOT / "VERSION").read_text().strip()
    if not dirty and _git("status", "--porcelain"):
        raise ReleaseError("the checkout has changes that are not committed; commit them, or give --dirty")
    check_tag(_git("tag", "--points-at", "HEAD"), version)
    committed = int(_git("log", "-1", "--format=%ct"))
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as folder:
        # A copy: builds of wheels leave folders in the tree, and the chart's values are changed.
        tree = _copied(Path(folder))
        for project in PROJECTS:
            uv = (sys.executable, "-m", "uv", "build", "--quiet", "--wheel")
            _run(*uv, "--out-dir", str(target.absolute()), project, at=tree)
        values = tree / "charts" / "megatron-operator" / "values.yaml"
        if images is not None:
            values.write_text(name_images(values.read_text(), images))
        _run(helm, "package", str(values.parent), "--destination", str(target.absolute()), at=tree)
    shutil.copy(ROOT / "crds" / "megatronrecipes.yaml", target)
    for image in LOCKS:
        bill = bill_of_materials(image, version, lock_text(image), committed)
        (target / f"{image}-{version}.cdx.json").write_text(json.dumps(bill, indent=1) + "\n")
    (target / ".gitignore").unlink(missing_ok=True)
    files = sorted(target.iterdir())
    sums = [f"{hashlib.sha256(each.read_bytes()).hexdigest()}  {each.name}\n" for each in files]
    (target / "SHA256SUMS").write_text("".join(sums))
    return [*files, target / "SHA256SUMS"]


def _git(*arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()


def _copied(folder: Path) -> Path:
    """A copy of the checkout without what git ignores."""
    for name in _git("ls-files", "--cached", "--others", "--exclude-standard").splitlines():
        if (ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    return folder


def _run(*command: str, at: Path) -> None:
    done = subprocess.run(command, cwd=at, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ReleaseError(f"{' '.join(command)} failed:\n{done.stderr.strip()}")


def _checked(tag: str) -> int:
    try:
        check_tag(tag, (ROOT / "VERSION").read_text().strip())
    except ReleaseError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    built = ROOT / ".cluster" / "bin" / "helm"
    found = shutil.which("helm") or (str(built) if built.exists() else None)
    parser.add_argument("--target", type=Path, default=ROOT / "dist", help="folder, which is emptied first")
    parser.add_argument("--helm", default=found, help="default: that of PATH, or of the local cluster")
    parser.add_argument("--dirty", action="store_true", help="also with changes that are not committed")
    parser.add_argument("--images", type=Path, help="lines REGISTRY/NAME@sha256:DIGEST, for the chart")
    parser.add_argument("--check-tag", metavar="TAG", help="only check that a tag is that of VERSION")
    options = parser.parse_args()
    if options.check_tag is not None:
        return _checked(options.check_tag)
    if options.helm is None:
        parser.error(
            "there is no helm on PATH; install it, or build the local cluster's with make cluster-up"
        )
    try:
        images = read_images(options.images.read_text()) if options.images else None
        files = build(options.target, options.helm, dirty=options.dirty, images=images)
    except ReleaseError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    for each in files:
        print(each)
    return 0


if __name__ == "__main__":
    sys.exit(main())
