"""The stand-in for torch.cuda and its Adam. It patches torch, so its programs run in another process."""

import json
import subprocess
import sys
from typing import Any

import pytest
import torch
from megatron_trainer.platform.adam import FusedAdamOnCpu


def updates(
    optimizer_of: type[torch.optim.Optimizer], **options: object
) -> tuple[torch.Tensor, torch.optim.Optimizer]:
    generator = torch.Generator().manual_seed(1)
    parameter = torch.nn.Parameter(torch.randn(7, 3, generator=generator))
    optimizer = optimizer_of([parameter], lr=1e-2, weight_decay=0.1, **options)  # type: ignore[call-arg]
    for _ in range(5):
        parameter.grad = torch.randn(7, 3, generator=generator)
        optimizer.step()
    return parameter.detach(), optimizer


def test_adam_updates_equal_torchs_adamw() -> None:
    ours, _ = updates(FusedAdamOnCpu)
    theirs, _ = updates(torch.optim.AdamW, fused=True)
    assert torch.equal(ours, theirs)


def test_adam_without_decoupled_decay_equals_torchs_adam() -> None:
    ours, _ = updates(FusedAdamOnCpu, adam_w_mode=False)
    theirs, _ = updates(torch.optim.Adam, fused=True)
    assert torch.equal(ours, theirs)


def test_adam_has_a_state_of_a_parameter_without_gradient() -> None:
    """As Transformer Engine's: ranks that save the states of all parameters then have the same names."""
    trained, other = (torch.nn.Parameter(torch.ones(2)) for _ in range(2))
    optimizer = FusedAdamOnCpu([trained, other], lr=1e-2)
    trained.grad = torch.ones(2)
    optimizer.step()
    assert torch.equal(other, torch.ones(2))
    assert optimizer.state[other].keys() == optimizer.state[trained].keys() == {"exp_avg", "exp_avg_sq"}


def test_adam_keeps_step_in_the_parameter_group() -> None:
    parameter, optimizer = updates(FusedAdamOnCpu)
    (group,) = optimizer.param_groups
    assert group["step"] == 5
    (state,) = optimizer.state.values()
    assert {name: tensor.shape for name, tensor in state.items()} == {
        "exp_avg": parameter.shape,
        "exp_avg_sq": parameter.shape,
    }


DEVICE = """
tensor = torch.zeros(2, device="cuda").cuda().to("cuda:0")
results = str(tensor.device), tensor.type(), torch.cuda.is_available()
"""
RANDOM_STREAMS = """
torch.manual_seed(7)
host, device = torch.get_rng_state(), torch.cuda.get_rng_state()
first = torch.rand(3, device="cuda")
assert torch.equal(torch.get_rng_state(), host), "the device's draw moved the host's stream"
loader = torch.utils.data.DataLoader([1, 2])
before = torch.cuda.get_rng_state()
iter(loader)
assert torch.equal(torch.cuda.get_rng_state(), before), "the loader moved the device's stream"
assert not torch.equal(torch.get_rng_state(), host)
torch.cuda.set_rng_state(device)
results = torch.equal(torch.rand(3, device="cuda"), first)
"""
RUN_ALL = """
import json, sys, traceback
import torch
from megatron_trainer.platform import cuda_stand_in

cuda_stand_in.install()
outcomes = []
for program in json.load(sys.stdin):
    names = {"torch": torch}
    try:
        exec(program, names)
        outcomes.append(names["results"])
    except Exception:
        outcomes.append(traceback.format_exc())
print(json.dumps(outcomes))
"""


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    """What each program under the stand-in leaves in `results`, or its traceback; one process for all."""
    programs = [DEVICE, RANDOM_STREAMS]
    run = subprocess.run(
        [sys.executable, "-c", RUN_ALL],
        input=json.dumps(programs),
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return dict(zip(programs, json.loads(run.stdout), strict=True))


def test_the_cuda_device_is_the_cpu(results: dict[str, Any]) -> None:
    assert results[DEVICE] == ["cpu", "torch.cuda.FloatTensor", True]


def test_host_and_device_have_separate_random_streams_that_can_be_restored(results: dict[str, Any]) -> None:
    assert results[RANDOM_STREAMS] is True
