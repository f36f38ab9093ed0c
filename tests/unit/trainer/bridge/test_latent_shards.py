"""What of samples of latents is wrong data, and what an error of their volume."""

import errno
from pathlib import Path

import pytest

pytest.importorskip("megatron.training", reason="make setup-trainer")

from megatron_trainer.bridge import latent_shards
from megatron_trainer.bridge.latent_shards import Place
from megatron_trainer.bridge.sample_files import SampleLineError


def test_an_error_of_the_volume_is_not_wrong_data(tmp_path: Path) -> None:
    """Reads of address 0 of a process's memory fail with EIO."""
    tar = tmp_path / "0.tar"
    tar.symlink_to("/proc/self/mem")
    for read in (
        lambda: latent_shards.find(tmp_path),
        lambda: latent_shards.first(tmp_path),
        lambda: latent_shards.read(Place(tar, "0", (0, 8), (8, 8))),
    ):
        with pytest.raises(OSError, match="Input/output error") as raised:
            read()
        assert raised.value.errno == errno.EIO


def test_a_file_that_is_missing_or_no_tar_file_is_wrong_data(tmp_path: Path) -> None:
    tar = tmp_path / "0.tar"
    with pytest.raises(SampleLineError, match=r"0\.tar: 0: FileNotFoundError"):
        latent_shards.read(Place(tar, "0", (0, 8), (8, 8)))
    tar.write_bytes(b"no header" * 100)
    with pytest.raises(SampleLineError, match=r"0\.tar: "):
        latent_shards.find(tmp_path)
    with pytest.raises(SampleLineError, match=r"0\.tar: 0: "):
        latent_shards.read(Place(tar, "0", (0, 8), (8, 8)))
