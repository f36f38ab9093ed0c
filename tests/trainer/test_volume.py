"""A checkpoint volume that is full, or that cannot be written."""

import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.trainer.gang import SAVE_INTERVAL, TRAIN_ITERS, Gang, assert_same_training, until

# Space for the data's index and about two and a half checkpoints of the tests' model.
VOLUME_BYTES = 11 << 20


def mount(options: str, path: Path) -> None:
    command = ["mount", "-t", "tmpfs", "-o", options, "small", str(path)]
    mounted = subprocess.run(command, capture_output=True, check=False, text=True)
    if mounted.returncode:
        pytest.skip(f"mounting a small tmpfs needs root: {mounted.stderr.strip()}")


@pytest.fixture
def small_volume(pod: Gang) -> Iterator[Path]:
    """The checkpoint directory on a volume of a few MiB."""
    pod.save.mkdir()
    mount(f"size={VOLUME_BYTES}", pod.save)
    yield pod.save
    pod.stop()
    subprocess.run(["umount", "--lazy", str(pod.save)], check=True)


def test_a_full_volume_is_reported_and_no_checkpoint_is_lost(
    small_volume: Path, pod: Gang, undisturbed: Gang
) -> None:
    pod.hold_after(SAVE_INTERVAL + 1)
    pod.start()
    pod.await_checkpoint(SAVE_INTERVAL)
    filler = small_volume / "other-data"
    stat = os.statvfs(small_volume)
    filler.write_bytes(b"x" * (stat.f_bavail * stat.f_frsize - (1 << 20)))
    pod.release()
    until(
        "the warning",
        lambda: [w for w in pod.progress(0)["warnings"] if w["reason"] == "CheckpointVolumeLow"] or None,
    )
    pod.await_iteration(SAVE_INTERVAL + 1, generation=2)
    cause = pod.incidents()[0]["cause"]
    assert "a checkpoint could not be written" in cause
    assert f"free on the volume of {small_volume}" in cause
    assert pod.incidents()[0]["resumedFrom"] == SAVE_INTERVAL
    filler.unlink()
    assert pod.wait() == [0], pod.log()[-3000:]
    assert_same_training(pod, undisturbed)
    assert f"iter_{TRAIN_ITERS:07d}" in {path.name for path in small_volume.iterdir()}


def test_a_run_resumes_on_a_volume_that_a_partial_save_has_filled(
    small_volume: Path, pod: Gang, undisturbed: Gang
) -> None:
    pod.hold_after(SAVE_INTERVAL + 1)
    pod.start()
    pod.await_checkpoint(SAVE_INTERVAL)
    pod.stop()
    until("its ranks to end", lambda: not pod.survivors() or None)
    partial = small_volume / f"iter_{2 * SAVE_INTERVAL:07d}"
    partial.mkdir()
    stat = os.statvfs(small_volume)
    (partial / "__0_0.distcp").write_bytes(b"x" * (stat.f_bavail * stat.f_frsize))
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        (partial / "__1_0.distcp").write_bytes(b"x")
    pod.release()
    pod.start()
    assert pod.wait() == [0], pod.log()[-3000:]
    assert_same_training(pod, undisturbed)


def test_an_unwritable_directory_is_refused_but_retryable_once_the_run_has_written_it(
    small_volume: Path, pod: Gang
) -> None:
    pod.environment["MEGATRON_RENDEZVOUS_TIMEOUT"] = "4"
    mount(f"remount,ro,size={VOLUME_BYTES}", small_volume)
    pod.start()
    assert pod.wait() == [64], pod.log()[-3000:]
    assert pod.termination(0)["message"] == (
        f"--save {small_volume} cannot be written: Read-only file system; mount the volume writable for user "
        f"{os.getuid()}"
    )
    mount(f"remount,rw,size={VOLUME_BYTES}", small_volume)
    (small_volume / "owner.json").write_text('{"incarnation": "older"}')
    mount(f"remount,ro,size={VOLUME_BYTES}", small_volume)
    pod.start()
    assert pod.wait() == [138], pod.log()[-3000:]
    assert "this run has written it before" in pod.termination(0)["message"]


def test_a_pod_waits_for_a_volume_that_is_temporarily_read_only(
    small_volume: Path, pod: Gang, undisturbed: Gang
) -> None:
    pod.start()
    pod.await_checkpoint(SAVE_INTERVAL)
    pod.stop()
    until("its ranks to end", lambda: not pod.survivors() or None)
    mount(f"remount,ro,size={VOLUME_BYTES}", small_volume)
    pod.start()
    until(
        "the warning",
        lambda: "cannot be written: Read-only file system; waiting up to 300 s for it" in pod.log() or None,
    )
    assert [w["reason"] for w in pod.progress(0)["warnings"]] == ["CheckpointVolumeNotWritable"]
    mount(f"remount,rw,size={VOLUME_BYTES}", small_volume)
    assert pod.wait() == [0], pod.log()[-3000:]
    assert_same_training(pod, undisturbed)
