"""Which flags the cpu platform adds and which it refuses."""

import pytest
from megatron_trainer.platform import cpu


def test_required_flags_are_added_and_returned() -> None:
    argv, added = cpu.adapt(["--bf16"])
    assert argv == ["--bf16", *added]
    assert added[:4] == ["--transformer-impl", "local", "--distributed-backend", "gloo"]
    assert "--no-rope-fusion" in added


def test_gradients_of_megatron_fsdp_are_scaled_before_their_sum() -> None:
    """Gloo has no sum that scales."""
    _, added = cpu.adapt(["--use-megatron-fsdp"])
    assert "--no-gradient-reduce-div-fusion" in added
    assert "--no-gradient-reduce-div-fusion" not in cpu.adapt(["--use-distributed-optimizer"])[1]


def test_given_flags_are_not_added_again() -> None:
    once, _ = cpu.adapt(["--bf16", "--use-megatron-fsdp"])
    assert cpu.adapt(once) == (once, [])


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (
            ["--num-experts", "4", "--tensor-model-parallel-size", "2"],
            "--num-experts with --tensor-model-parallel-size 2: Megatron requires sequence parallelism",
        ),
        (["--fp8-format", "hybrid"], "--fp8-format: FP8 needs"),
        (
            ["--transformer-impl", "transformer_engine"],
            "--transformer-impl transformer_engine: Transformer Engine",
        ),
        (["--distributed-backend=nccl"], "--distributed-backend nccl: NCCL needs a GPU; set it to gloo"),
        (["--context-parallel-size", "2"], "--context-parallel-size: ring attention needs"),
        (
            ["--expert-model-parallel-size", "2", "--moe-token-dispatcher-type", "alltoall"],
            "--moe-token-dispatcher-type alltoall with --expert-model-parallel-size 2",
        ),
    ],
)
def test_an_unsupported_flag_is_refused_with_its_name(argv: list[str], named: str) -> None:
    with pytest.raises(cpu.UnsupportedError) as refusal:
        cpu.adapt(argv)
    assert named in str(refusal.value)


def test_all_refusals_are_reported_together() -> None:
    with pytest.raises(cpu.UnsupportedError) as refusal:
        cpu.adapt(["--use-flash-attn", "--fp8-format", "hybrid"])
    assert "--use-flash-attn" in str(refusal.value)
    assert "--fp8-format" in str(refusal.value)
