"""Megatron's dataset helpers as they are installed."""

import megatron.core.datasets.utils
import pytest
from megatron_trainer.worker import dataset_helpers


def test_the_compiled_helpers_of_the_wheel_are_used_without_make(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wheel has no Makefile: Megatron's own function exits with 1."""
    name = "megatron.core.datasets.utils.compile_helpers"
    monkeypatch.setattr(name, megatron.core.datasets.utils.compile_helpers)
    dataset_helpers.skip_build()
    megatron.core.datasets.utils.compile_helpers()
