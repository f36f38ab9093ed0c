"""Every recipe function of the installed megatron-bridge, called once, without a GPU and without a network.

Needs megatron-bridge, torch and megatron-core (`make setup-trainer`).
"""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # pytest's importlib mode adds no directory by itself

from answers import Wheel
from started import STARTED, UNKNOWN


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Wheel:
    """Results of the functions."""
    return Wheel.called(tmp_path_factory.mktemp("wheel"), [*STARTED.values(), *UNKNOWN])
