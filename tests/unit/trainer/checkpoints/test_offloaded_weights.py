"""The weights of an optimizer on the CPU after a load without its states.

The stand-in for torch.cuda patches torch, so the program runs in another process.
"""

import json
import subprocess
import sys

import pytest

PROGRAM = """
import json
from types import SimpleNamespace
import torch
from megatron_trainer.platform import cuda_stand_in
cuda_stand_in.install()
from megatron.core.optimizer.cpu_offloading import HybridDeviceOptimizer
from megatron_trainer.checkpoints import offloaded_weights


class OnGpu(torch.Tensor):
    is_cuda = True

    def cpu(self):
        return self.as_subclass(torch.Tensor)


def after_a_step(share=1.0, resumes=False, follows=True):
    dtypes = torch.float32, torch.bfloat16
    parameters = [torch.ones(4, dtype=dtype).as_subclass(OnGpu) for dtype in dtypes]
    offloading = HybridDeviceOptimizer(
        parameters, offload_fraction=share, cpu_optimizer_cls=torch.optim.AdamW,
        gpu_optimizer_cls=torch.optim.AdamW, param_update_in_fp32=True,
        overlap_cpu_optimizer_d2h_h2d=False, lr=0.0, weight_decay=0.0,
    )
    assert len(offloading.gpu_params_map_cpu_copy) == 2 * share

    def step():
        for each in parameters:
            each.grad = torch.zeros_like(each)
        offloading.step()

    if resumes:
        step()
    for each in parameters:
        each.data.copy_(torch.full((4,), 3.0))
    if not resumes:
        offloading.update_fp32_param_by_new_param()
    if follows:
        chain = SimpleNamespace(chained_optimizers=[SimpleNamespace(optimizer=offloading)])
        offloaded_weights.follow(object(), chain, None)
    step()
    return [float(each[0]) for each in parameters]


print(json.dumps({
    "Megatron alone": after_a_step(follows=False),
    "offloaded": after_a_step(),
    "on the GPU": after_a_step(share=0.0),
    "with states": after_a_step(resumes=True),
}))
"""
LOADED, INITIAL = 3.0, 1.0


@pytest.fixture(scope="module")
def after_a_step() -> dict[str, list[float]]:
    """A parameter in FP32 and one in BF16, loaded as Megatron does, after a step at a learning rate of 0."""
    words = [sys.executable, "-W", "ignore", "-c", PROGRAM]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, list[float]] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_megatron_alone_writes_the_initial_values_of_offloaded_parameters_in_fp32_back(
    after_a_step: dict[str, list[float]],
) -> None:
    assert after_a_step["Megatron alone"] == [INITIAL, LOADED]


def test_loaded_weights_are_those_that_the_optimizer_updates(after_a_step: dict[str, list[float]]) -> None:
    assert after_a_step["offloaded"] == [LOADED, LOADED]
    assert after_a_step["on the GPU"] == [LOADED, LOADED]


def test_an_optimizer_with_states_keeps_its_own_copies(after_a_step: dict[str, list[float]]) -> None:
    assert after_a_step["with states"] == [INITIAL, INITIAL]
