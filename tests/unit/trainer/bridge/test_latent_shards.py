"""What of samples of latents is wrong data, and what an error of their volume."""

import errno
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("megatron.training", reason="make setup-trainer")

from megatron_trainer.bridge import latent_shards
from megatron_trainer.bridge.latent_shards import Place
from megatron_trainer.bridge.sample_files import SampleLineError

from testkit.image_text import add_file


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


SAMPLE = 4 * tarfile.BLOCKSIZE
"""Bytes of a sample: two small files with their headers."""


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda data: data[:SAMPLE], id="cut between samples"),
        pytest.param(lambda data: data[: SAMPLE + 100], id="cut in a header"),
        pytest.param(lambda data: data[: SAMPLE + 150] + b"x" + data[SAMPLE + 151 :], id="a damaged header"),
        pytest.param(lambda data: data + data, id="two archives in one file"),
    ],
)
def test_a_tar_file_that_ends_early_loses_no_sample_silently(
    tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    path = tmp_path / "0.tar"
    with tarfile.open(path, "w") as tar:
        for name in ("0.pth", "0.pickle", "1.pth", "1.pickle"):
            add_file(tar, name, b"tensors")
    assert [place.key for place in latent_shards.find(tmp_path)] == ["0", "1"]
    path.write_bytes(damage(path.read_bytes()))
    for read in (latent_shards.find, latent_shards.first):
        with pytest.raises(SampleLineError, match=r"0\.tar: byte [\d,]+ begins neither a file nor the end"):
            read(tmp_path)


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        (["a/12.5.pth", "a/12.5.pickle"], "a/12.5.pth: the key of a sample ends at the first dot; rename"),
        (["0.pth", "0.pickle", "0.mask.pickle"], "0.mask.pickle: the key of a sample ends at the first dot"),
        (["0.pth", "0.pickle", "0.pth"], "0.pth is there twice; give each sample a name of its own"),
    ],
)
def test_a_sample_whose_name_is_not_its_own_is_not_left_out(
    tmp_path: Path, names: list[str], problem: str
) -> None:
    with tarfile.open(tmp_path / "0.tar", "w") as tar:
        for name in names:
            add_file(tar, name, b"tensors")
    with pytest.raises(SampleLineError) as refused:
        latent_shards.find(tmp_path)
    assert str(refused.value).startswith(f"{tmp_path}/0.tar: {problem}")


def test_other_files_of_a_sample_are_not_read(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "0.tar", "w") as tar:
        for name in ("0.json", "0.pth", "0.pickle", "0.caption.txt"):
            add_file(tar, name, b"tensors")
    assert [place.key for place in latent_shards.find(tmp_path)] == ["0"]
