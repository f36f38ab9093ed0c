"""Diffusion models have the parameters of the models that Megatron-Bridge builds, and its count of FLOPs."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from megatron_operator import catalog
from megatron_operator.api.diagnostics import Diagnostics
from megatron_operator.planner.estimate.model_shape import ModelShape, model_shape
from megatron_operator.planner.estimate.parameters import flops_per_token, parameters

CATALOG = catalog.load()
BUILDS = Path(__file__).with_name("diffusion_models.py")
PUBLISHED = {"flux1-12b": 11.9e9, "wan2.1-1.3b": 1.42e9, "wan2.1-14b": 14.3e9}
"""Parameters of the transformers in the repositories of FLUX.1-dev and Wan2.1."""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    sizes = tmp_path_factory.mktemp("diffusion") / "sizes.json"
    done = subprocess.run(
        [sys.executable, str(BUILDS), str(sizes)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(sizes.read_text())
    return found


def shape_of(name: str) -> ModelShape:
    shape = model_shape(CATALOG.get(name).model, Diagnostics())
    assert shape is not None
    return shape


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_diffusion_model_has_the_parameters_of_bridges(name: str, built: dict[str, Any]) -> None:
    found = parameters(shape_of(name), 0)
    assert found == built["parameters"][name]
    assert found == pytest.approx(PUBLISHED[name], rel=0.005)


@pytest.mark.parametrize("name", ["wan2.1-1.3b", "wan2.1-14b"])
def test_flops_of_a_sample_are_those_that_the_provider_counts(name: str, built: dict[str, Any]) -> None:
    shape = shape_of(name)
    assert shape.diffusion is not None
    tokens = shape.diffusion.latent_tokens
    assert tokens * flops_per_token(shape, tokens, 0) == pytest.approx(built["flops"][name], rel=1e-9)
