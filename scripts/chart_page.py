"""Generates the chart's README.md from the values and their comments.

.venv/bin/python scripts/chart_page.py          # write
.venv/bin/python scripts/chart_page.py --check  # exit 1 if the page is stale
"""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import yaml

CHART = Path(__file__).parents[1] / "charts" / "megatron-operator"
INTRODUCTION = """\
<!-- Generated from values.yaml by scripts/chart_page.py. Do not edit. -->
# The megatron-operator chart

Installs the operator, the CustomResourceDefinition `MegatronRecipe`, and the rights that the operator needs.
Prerequisites, images and a first recipe: [installation](../../docs/installation.md). Upgrades, high
availability and what an uninstallation leaves: [operations](../../docs/operations.md). What each right
is for: [security](../../docs/security.md).

    helm upgrade --install megatron-operator charts/megatron-operator \\
      -n megatron-system --create-namespace -f values.yaml

Values that are not listed are refused, as are values of a wrong type (`values.schema.json`).

| Value | Default | Meaning |
|---|---|---|
"""
_KEY = re.compile(r"( *)(\w+):(.*)")


def page() -> str:
    """The page as Markdown. Raises ValueError if a value has no comment, nor any that contains it."""
    text = (CHART / "values.yaml").read_text()
    comments = dict(_comments(text.splitlines()))
    rows = []
    for path, comment in comments.items():
        default = yaml.safe_load(text)
        for key in path:
            default = default[key]
        explained = any(comments[path[:length]] for length in range(1, len(path) + 1))
        section = any(other[:-1] == path for other in comments)
        if not (explained or section):
            raise ValueError(f"values.yaml: {'.'.join(path)} has no comment that gives its meaning")
        if comment:
            meaning = comment.replace("|", "\\|")
            rows.append(f"| `{'.'.join(path)}` | `{json.dumps(default)}` | {meaning} |\n")
    return INTRODUCTION + "".join(rows)


def _comments(lines: list[str]) -> Iterator[tuple[tuple[str, ...], str]]:
    """Each key's path, and the comment above it."""
    above: list[str] = []
    path: list[str] = []
    for line in lines:
        if line.lstrip().startswith("#"):
            above.append(line.lstrip().lstrip("#").strip())
        elif match := _KEY.fullmatch(line):
            path = [*path[: len(match[1]) // 2], match[2]]
            yield tuple(path), " ".join(above)
            above = []
        else:
            above = []


def main() -> int:
    """Write the page, or compare it. Returns an exit code."""
    target = CHART / "README.md"
    if "--check" not in sys.argv:
        target.write_text(page())
    elif not target.exists() or target.read_text() != page():
        print(f"{target.relative_to(CHART.parents[1])} is stale: run scripts/chart_page.py")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
