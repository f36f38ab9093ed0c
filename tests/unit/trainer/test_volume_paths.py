"""Links that lead out of a volume are noticed wherever a pod reads or writes it."""

from functools import partial
from pathlib import Path

import pytest
from megatron_contract.exit_codes import ExitCode
from megatron_trainer import settings
from megatron_trainer.launcher import pod
from megatron_trainer.volume_paths import left_volume


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    (tmp_path / "volume" / "shared").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    return tmp_path / "volume"


def test_a_link_within_the_volume_is_followed(volume: Path) -> None:
    (volume / "corpus").symlink_to("shared")
    assert left_volume(volume / "corpus" / "text.bin", [volume]) is None


@pytest.mark.parametrize("target", ["../elsewhere", "/proc/self"])
def test_a_link_out_of_the_volume_is_refused_also_in_a_parent(volume: Path, target: str) -> None:
    (volume / "corpus").symlink_to(target)
    problem = left_volume(volume / "corpus" / "environ", [volume])
    assert problem is not None
    assert "outside of its volume" in problem


def test_links_that_point_at_each_other_are_refused(volume: Path) -> None:
    (volume / "one").symlink_to("two")
    (volume / "two").symlink_to("one")
    assert left_volume(volume / "one" / "text.bin", [volume]) is None or "cannot be resolved" in str(
        left_volume(volume / "one" / "text.bin", [volume])
    )


def test_a_path_on_no_volume_and_one_that_does_not_exist_pass(volume: Path) -> None:
    assert left_volume(volume.parent / "elsewhere", [volume]) is None
    assert left_volume(volume / "new" / "run", [volume]) is None


def test_a_volume_that_is_a_link_itself_is_its_target(volume: Path) -> None:
    mounted = volume.parent / "mounted"
    mounted.symlink_to(volume)
    assert left_volume(mounted / "shared", [mounted]) is None


def test_no_checkpoint_is_saved_outside_of_its_volume(volume: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (volume / "run").symlink_to(volume.parent / "elsewhere")
    monkeypatch.setattr(pod, "left_volume", partial(left_volume, volumes=[volume]))
    started = pod.Pod(
        settings.read({"MEGATRON_PLATFORM": "cpu"}), ["--save", str(volume / "run")], lambda _text: None
    )
    ending = started._open_journal()
    assert ending is not None
    assert ending.code == ExitCode.USAGE
    assert "outside of its volume" in ending.message
    assert list((volume.parent / "elsewhere").iterdir()) == []
