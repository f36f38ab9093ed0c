"""A rank that the kernel ended for lack of memory is told from one that somebody killed."""

from pathlib import Path

import pytest
from megatron_trainer.health.oom_kills import MemoryKills


@pytest.mark.parametrize(
    ("counter", "text", "limit"),
    [
        ("memory.events", "low 0\nmax 9\noom 2\noom_kill {}\n", "memory.max"),
        (
            "memory/memory.oom_control",
            "oom_kill_disable 0\nunder_oom 0\noom_kill {}\n",
            "memory/memory.limit_in_bytes",
        ),
    ],
    ids=["v2", "v1"],
)
def test_a_kill_is_told_once(tmp_path: Path, counter: str, text: str, limit: str) -> None:
    (tmp_path / counter).parent.mkdir(exist_ok=True)
    (tmp_path / counter).write_text(text.format(3))
    (tmp_path / limit).write_text(str(5 * 2**30))
    kills = MemoryKills(tmp_path)
    assert not kills.more()
    (tmp_path / counter).write_text(text.format(4))
    assert kills.more()
    assert not kills.more()
    assert kills.limit() == " (limit 5.0 GiB)"


def test_no_limit_is_not_told(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("max\n")
    assert MemoryKills(tmp_path).limit() == ""
    assert not MemoryKills(tmp_path).more()
