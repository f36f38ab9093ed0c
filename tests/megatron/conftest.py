"""Checks every argument list of the operator against the real Megatron, without a GPU.

Needs torch and megatron-core (`make setup-trainer`).
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"  # read at import: no test may contact the model hub
sys.path.insert(0, str(Path(__file__).parent))  # pytest's importlib mode adds no directory by itself

from stages import Megatron
from tokenizers_on_disk import write_tokenizers


@pytest.fixture(scope="session")
def megatron(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Megatron]:
    """Megatron that detects an H100 and Transformer Engine."""
    tokenizers = write_tokenizers(tmp_path_factory.mktemp("tokenizers"))
    with Megatron.with_gpu_stand_in(tokenizers) as driven:
        yield driven
