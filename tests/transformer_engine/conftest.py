"""Real models with Transformer Engine's layers at full size, without a GPU: `make test-gpu-path`.

Where Transformer Engine is not installed, as in `.venv`, there are no tests here.
"""

import contextlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from stages import Megatron

os.environ["HF_HUB_OFFLINE"] = "1"  # read at import: no test may contact the model hub
# The cases, and Megatron driven stage by stage. pytest's importlib mode adds no directory by itself.
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "megatron")]
if importlib.util.find_spec("transformer_engine") is None:
    collect_ignore_glob = ["test_*.py"]


class _StreamWithoutWork:
    """Stands for a CUDA stream: there is no work to wait for."""

    def __init__(self, *_: object, **__: object) -> None: ...

    def wait_stream(self, _: object) -> None: ...


@pytest.fixture(scope="session")
def megatron(tmp_path_factory: pytest.TempPathFactory) -> Iterator["Megatron"]:
    """Megatron with Transformer Engine and the stand-in for an H100.

    More stand-ins: Transformer Engine's modules cannot be made where there is no CUDA, and streams are made
    by the all-to-all dispatcher and around the data-parallel wrapper.
    """
    import torch
    from stages import Megatron
    from tokenizers_on_disk import write_tokenizers

    tokenizers = write_tokenizers(tmp_path_factory.mktemp("tokenizers"))
    with pytest.MonkeyPatch.context() as patch, Megatron.with_gpu_stand_in(tokenizers) as driven:
        patch.setattr(torch.cuda, "is_available", lambda: True)
        patch.setattr(torch.cuda, "Stream", _StreamWithoutWork)
        patch.setattr(torch.cuda, "current_stream", _StreamWithoutWork)
        patch.setattr(torch.cuda, "stream", contextlib.nullcontext)
        yield driven
