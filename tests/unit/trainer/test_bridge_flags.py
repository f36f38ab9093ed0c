"""What the launcher reads of a Megatron-Bridge run's arguments, and adds to them."""

from pathlib import Path

import pytest
from megatron_trainer import bridge_flags, engine
from megatron_trainer.flags import BRIDGE_FORMAT, FlagError, Flags

SAVE = 'checkpoint.save="/c"'


def test_the_overrides_of_the_launcher_are_read() -> None:
    read = bridge_flags.read(["f", SAVE, "train.train_iters=30", "dataset.num_workers=4", "optimizer.lr=0.1"])
    assert read == Flags(Path("/c"), None, 30, BRIDGE_FORMAT, num_workers=4)


def test_a_run_with_save_resumes_from_there_and_saves_on_sigterm() -> None:
    words, added = bridge_flags.complete(["f", SAVE])
    assert added == ['checkpoint.load="/c"', "train.exit_signal_handler=true"]
    assert words == ["f", SAVE, *added]


def test_given_overrides_are_not_added_again() -> None:
    given = ["f", SAVE, 'checkpoint.load="/d"', "train.exit_signal_handler=false"]
    assert bridge_flags.complete(given) == (given, [])


@pytest.mark.parametrize(
    ("word", "problem"),
    [
        (
            "checkpoint.async_save=true",
            "checkpoint.async_save=True: the writer that Bridge starts is not watched",
        ),
        ('checkpoint.ckpt_format="fsdp_dtensor"', "checkpoint.ckpt_format='fsdp_dtensor'"),
        ("checkpoint.save=3", "checkpoint.save: 3 is not a path"),
        ("train.train_iters=2.5", "train.train_iters: 2.5 is not a whole number"),
        ("lr=1", "'lr=1' is not an override"),
    ],
)
def test_an_override_that_recovery_cannot_take_is_refused(word: str, problem: str) -> None:
    with pytest.raises(FlagError) as refused:
        bridge_flags.read(["f", word])
    assert problem in str(refused.value)


def test_the_engine_decides_how_arguments_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    assert engine.read(["--save", "/c"]).ckpt_format == "torch_dist"
    monkeypatch.setenv("MEGATRON_ENGINE", "bridge")
    assert engine.read(["f", SAVE]).save == Path("/c")


def test_an_image_without_bridge_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "find_spec", lambda _name: None)
    assert engine.why_absent() is None
    monkeypatch.setenv("MEGATRON_ENGINE", "bridge")
    assert "this image lacks Megatron-Bridge or what it imports" in (engine.why_absent() or "")
