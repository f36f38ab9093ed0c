"""The stand-in for torch.cuda and its Adam. The stand-in patches torch: it runs in a
separate process."""

import subprocess
import sys
import textwrap

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


def test_adam_keeps_step_in_the_parameter_group() -> None:
    parameter, optimizer = updates(FusedAdamOnCpu)
    (group,) = optimizer.param_groups
    assert group["step"] == 5
    (state,) = optimizer.state.values()
    assert {name: tensor.shape for name, tensor in state.items()} == {
        "exp_avg": parameter.shape,
        "exp_avg_sq": parameter.shape,
    }


def under_the_stand_in(program: str) -> str:
    start = "import torch\nfrom megatron_trainer.platform import cuda_stand_in\ncuda_stand_in.install()\n"
    run = subprocess.run(
        [sys.executable, "-c", start + textwrap.dedent(program)], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


def test_the_cuda_device_is_the_cpu() -> None:
    assert (
        under_the_stand_in(
            """
            tensor = torch.zeros(2, device="cuda").cuda().to("cuda:0")
            print(tensor.device, tensor.type(), torch.cuda.is_available())
            """
        )
        == "cpu torch.cuda.FloatTensor True"
    )


def test_host_and_device_have_separate_random_streams_that_can_be_restored() -> None:
    assert (
        under_the_stand_in(
            """
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
            print(torch.equal(torch.rand(3, device="cuda"), first))
            """
        )
        == "True"
    )
