"""Tar files of latents, as Megatron-Energon's datasets for diffusion have them, of random numbers.

No VAE and no text encoder has made them: what a model learns from them means nothing.
"""

import io
import json
import pickle
import sys
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from testkit.small_diffusion import CHANNELS, POOLED, TEXT_CHANNELS

type Sample = tuple[torch.Tensor, Any]


def video(number: int) -> Sample:
    """Latents of a video of 1 to 3 frames and embeddings of a text of 3 to 6 tokens."""
    draw = torch.Generator().manual_seed(number)
    latents = torch.randn(CHANNELS, 1 + number % 3, 4, 6, generator=draw)
    return latents, torch.randn(3 + number % 4, TEXT_CHANNELS, generator=draw)


def image(number: int) -> Sample:
    """Latents of an image, and of its text the embeddings of tokens and the pooled one."""
    draw = torch.Generator().manual_seed(number)
    text = {
        "prompt_embeds": torch.randn(3 + number % 9, TEXT_CHANNELS, generator=draw).bfloat16(),
        "pooled_prompt_embeds": torch.randn(POOLED, generator=draw),
    }
    return torch.randn(CHANNELS, 4, 6, generator=draw).bfloat16(), text


def files(key: str, sample: Sample) -> dict[str, bytes]:
    """The files of a sample."""
    latents = io.BytesIO()
    torch.save(sample[0], latents)
    return {
        f"{key}.pth": latents.getvalue(),
        f"{key}.pickle": pickle.dumps(sample[1]),
        f"{key}.json": json.dumps({"source": "random numbers"}).encode(),
    }


def write_tar(path: Path, members: Mapping[str, bytes]) -> None:
    """Write a tar file, and its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))


def write_latents(folder: Path, make: Callable[[int], Sample], training: int, validation: int) -> None:
    """Write two tar files for training and one for validation."""
    for shard in range(2):
        numbers = range(shard * training // 2, (shard + 1) * training // 2)
        members = [files(f"{number:06}", make(number)) for number in numbers]
        write_tar(folder / f"{shard:05}.tar", {k: v for each in members for k, v in each.items()})
    members = [files(f"{number:06}", make(number)) for number in range(training, training + validation)]
    write_tar(folder / "validation" / "00000.tar", {k: v for each in members for k, v in each.items()})


OF_FAMILY = {"flux1": image, "wan2.1": video}
"""Family -> what makes its samples."""

if __name__ == "__main__":
    write_latents(Path(sys.argv[1]), OF_FAMILY[sys.argv[2]], *(int(word) for word in sys.argv[3:]))
