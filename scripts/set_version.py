"""Sets the version in every file that names it: `make set-version VERSION=1.2.3`.

1.2.3 is a release, and 1.2.3-dev the tree on the way to it: a version of charts and images (SemVer), which
packages have as 1.2.3.dev0 (PEP 440). For a release CHANGELOG.md gets a heading too.
"""

import argparse
import re
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
FILES: Final = (
    "VERSION",
    "charts/megatron-operator/Chart.yaml",
    "charts/megatron-operator/README.md",
    "charts/megatron-operator/values.yaml",
    "docs/installation.md",
    "operator/Dockerfile",
    "trainer-image/Dockerfile",
    "trainer-image/Dockerfile.gpu",
)
GOLDEN: Final = "tests/golden/chart/*.yaml"
_VERSION: Final = re.compile(r"(\d+)\.(\d+)\.(\d+)(-dev)?")
_UNRELEASED: Final = "## [Unreleased]\n"


class VersionError(Exception):
    """The version cannot be set."""


def set_version(root: Path, new: str, today: str) -> list[Path]:
    """Replace the version of the tree `root` by `new`; returns the changed files. `today` is YYYY-MM-DD.

    Raises VersionError, before a file is written, for a version that is not above that of the tree, and for a
    file without the version.
    """
    old = (root / "VERSION").read_text().strip()
    if _order(new) <= _order(old):
        raise VersionError(f"{new} is not above {old}, the version of VERSION")
    pattern = re.compile(rf"(?<![\d.]){re.escape(old)}(?![\d-]|\.\d)")
    changed: dict[Path, str] = {}
    for path in (*(root / name for name in FILES), *sorted(root.glob(GOLDEN))):
        changed[path], count = pattern.subn(new, path.read_text())
        if not count:
            raise VersionError(f"{path.relative_to(root)} does not name {old}, the version of VERSION")
    if not new.endswith("-dev"):
        changelog = root / "CHANGELOG.md"
        text = changelog.read_text()
        if _UNRELEASED not in text:
            raise VersionError(f"CHANGELOG.md has no heading {_UNRELEASED.strip()}")
        changed[changelog] = text.replace(_UNRELEASED, f"{_UNRELEASED}\n## [{new}] - {today}\n", 1)
    for path, text in changed.items():
        path.write_text(text)
    return list(changed)


def _order(version: str) -> tuple[int, int, int, bool]:
    """A development version is below its release. Raises VersionError."""
    found = _VERSION.fullmatch(version)
    if found is None:
        raise VersionError(f"{version!r} is no version; give one such as 1.2.3 or 1.2.3-dev")
    major, minor, patch, dev = found.groups()
    return int(major), int(minor), int(patch), dev is None


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("version", help="for example 1.2.3, or 1.2.3-dev")
    options = parser.parse_args()
    try:
        files = set_version(ROOT, options.version, datetime.now(UTC).date().isoformat())
    except VersionError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    for each in files:
        print(each.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
