"""The trainer's gpu path with Transformer Engine's layers, on simulated GPUs, which compute nothing."""

import importlib.util
from collections.abc import Callable

import pytest

from tests.trainer.gang import Gang

if importlib.util.find_spec("transformer_engine") is None:
    pytest.skip("Transformer Engine is not installed", allow_module_level=True)

_LLAMA = (
    "--normalization",
    "RMSNorm",
    "--swiglu",
    "--disable-bias-linear",
    "--position-embedding-type",
    "rope",
)
_LATENT = (
    *("--multi-latent-attention", "--q-lora-rank", "32", "--kv-lora-rank", "32"),
    *("--qk-head-dim", "16", "--qk-pos-emb-head-dim", "16", "--v-head-dim", "16"),
)


@pytest.mark.parametrize(
    ("ranks", "flags"),
    [
        pytest.param(2, ("--tensor-model-parallel-size", "2", "--sequence-parallel"), id="sequence parallel"),
        pytest.param(1, ("--fp8-format", "hybrid", "--fp8-recipe", "delayed"), id="FP8"),
        pytest.param(1, _LATENT, id="latent attention"),
    ],
)
def test_a_run_trains_and_saves_with_transformer_engine(
    ranks: int, flags: tuple[str, ...], gpu_run: Callable[..., Gang]
) -> None:
    run = gpu_run(ranks=ranks)
    at = run.flags.index("--transformer-impl")
    # cuDNN and flash attention refuse the simulated driver.
    run.flags[at + 1] = "transformer_engine"
    run.flags += ["--attention-backend", "unfused", *_LLAMA]
    run.start(extra=("--train-iters", "2", *flags))
    assert run.wait() == [0], run.log()[-3000:]
    assert [record["iteration"] for record in run.records()] == [1, 2]
    assert (run.save / "iter_0000002").is_dir()
    assert "ranks start cold" not in run.log()
