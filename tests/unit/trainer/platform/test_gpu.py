"""Flags of the gpu platform that depend on what is installed."""

import importlib.util
from pathlib import Path
from types import SimpleNamespace

import pytest
from megatron_trainer.platform import gpu

pytest.importorskip("megatron.training", reason="make setup-trainer")

from megatron.core import tensor_parallel
from megatron.core.tensor_parallel import layers

FLAG = "--no-gradient-accumulation-fusion"


def test_gradient_accumulation_is_not_fused_without_apex() -> None:
    assert gpu.adapt(["--bf16"]) == (["--bf16", FLAG], [FLAG])


def test_the_flag_is_not_added_again() -> None:
    assert gpu.adapt([FLAG]) == ([FLAG], [])


def test_gradient_accumulation_is_fused_with_apex(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fused_weight_gradient_mlp_cuda.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    # A second copy of the module, which looks for Apex while it is imported.
    assert layers.__spec__
    assert layers.__spec__.loader
    again = importlib.util.module_from_spec(layers.__spec__)
    layers.__spec__.loader.exec_module(again)
    monkeypatch.setattr(tensor_parallel, "layers", again)
    assert gpu.adapt(["--bf16"]) == (["--bf16"], [])


def test_a_model_of_bridge_fuses_gradient_accumulation_with_apex_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = SimpleNamespace(gradient_accumulation_fusion=True)
    monkeypatch.setattr(layers, "_grad_accum_fusion_available", True)
    gpu.adapt_model(model)
    assert model.gradient_accumulation_fusion
    monkeypatch.setattr(layers, "_grad_accum_fusion_available", False)
    gpu.adapt_model(model)
    assert not model.gradient_accumulation_fusion
