"""OOM kills of the kernel are distinguished from other kills."""

from pathlib import Path

import pytest
from megatron_trainer.health.oom_kills import OomKillCounter


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
def test_a_kill_is_counted_once(tmp_path: Path, counter: str, text: str, limit: str) -> None:
    (tmp_path / counter).parent.mkdir(exist_ok=True)
    (tmp_path / counter).write_text(text.format(3))
    (tmp_path / limit).write_text(str(5 * 2**30))
    kills = OomKillCounter(tmp_path)
    assert not kills.increased()
    (tmp_path / counter).write_text(text.format(4))
    assert kills.increased()
    assert not kills.increased()
    assert kills.describe_limit() == " (limit 5.0 GiB)"


def test_without_a_limit_there_is_no_description(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("max\n")
    assert OomKillCounter(tmp_path).describe_limit() == ""
    assert not OomKillCounter(tmp_path).increased()
