"""Retired words: code, tests and pages use the standard terms of the field."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

RETIRED = {
    r"tell|tells|told|telling": "report, set, print; `set_condition`",
    r"said|say|says|saying": "reports, sets, states; 'given' or 'set by the user'",
    r"anew": "again, or re-create",
    r"mend|mends|mended|mending": "fix",
    r"lies on|lie on|lay on|laid out|lay out": "runs on, is planned on, is mapped to",
    r"in vain": "wasted, discarded",
    r"for ever": "never ends, forever",
    r"whose word": "name the authority",
    r"goes not with": "cannot be combined with",
    r"is no field of": "unknown field; did you mean ...?",
    r"is no flag of": "unknown flag",
    r"is not written as it must be": "invalid",
    r"has come back|come together|comes together": "recovered, returned; meet at the rendezvous",
    r"without a hand": "automatically",
    r"newcomer|newcomers": "replacement pods",
    r"hindsight": "termination events",
    r"nursery": "fork server",
    r"culprit|culprits": "failure classification, failed rank",
    r"keeper": "checkpoint manager",
    r"looks? at|looked at|one look|next look|a look|the look": "reconcile, check, read, inspect",
    r"last words": "termination message",
    r"draft": "status builder, `StatusBuilder`",
    r"scene": "snapshot",
    r"hearing": "progress status",
    r"rooms": "capacity",
    r"peaceful|in peace": "voluntary disruption",
    r"dealt with": "handled",
    r"whole checkpoint|whole checkpoints": "complete checkpoint",
    r"gangstore|gangstate": "rendezvous store, rendezvous state",
}
"""Pattern -> what to write instead."""

ALLOWED = {
    # Python's name of the position in a file.
    ("trainer-image/megatron_trainer/health/loss_spikes.py", "tell"),
}
"""(file, lower-case word) that others have named."""

SUFFIXES = {".py", ".md", ".yaml", ".yml", ".toml", ".sh", ".tpl", ".txt", ".in"}
NAMES = {"Makefile", "Dockerfile"}
EXCLUDED = re.compile(
    r"LICENSE|.*requirements.*\.txt|.*/go\.(mod|sum)|tests/unit/test_vocabulary\.py|.*/data/megatron_flags\.txt"
)

PATTERN = re.compile(rf"\b(?:{'|'.join(RETIRED)})\b", re.IGNORECASE)


def words_of(text: str) -> str:
    """The text with identifiers taken apart: `NurseryLost` and `laid_out_on` are words like any other."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", text).replace("_", " ")


def sources() -> list[str]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    names = [name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]
    return [
        name
        for name in names
        if (Path(name).suffix in SUFFIXES or Path(name).name in NAMES) and not EXCLUDED.fullmatch(name)
    ]


def replacement(word: str) -> str:
    return next(text for words, text in RETIRED.items() if re.fullmatch(words, word, re.IGNORECASE))


def retired_words(name: str) -> list[str]:
    """One line per retired word of a file, identifiers with underscores included."""
    found = []
    for number, line in enumerate((ROOT / name).read_text().splitlines(), 1):
        for match in PATTERN.finditer(words_of(line)):
            if (name, match[0].lower()) not in ALLOWED:
                found.append(
                    f"{name}:{number}: {match[0]!r}: write {replacement(match[0])}: {line.strip():.100}"
                )
    return found


def test_no_tracked_source_uses_a_retired_word() -> None:
    found = [line for name in sources() for line in retired_words(name)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "text", ["as told", "tell_incidents", "NurseryLost(", "the culprit's", "laid_out_on"]
)
def test_the_pattern_finds_words_and_parts_of_identifiers(text: str) -> None:
    assert PATTERN.search(words_of(text))


@pytest.mark.parametrize("text", ["renewal", "trends", "retell", "reheadings", "obscene", "amended"])
def test_the_pattern_leaves_longer_words_alone(text: str) -> None:
    assert not PATTERN.search(words_of(text))
