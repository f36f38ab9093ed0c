"""The cpu platform: Megatron's own training loop over gloo, without a GPU, for the demo and for tests."""

import os
import sys
from collections.abc import Sequence

from megatron_trainer.errors import TrainerError
from megatron_trainer.flags import MEGATRON_FSDP

# Flag -> value ("" for a switch) that this platform requires, and why.
REQUIRED: dict[str, tuple[str, str]] = {
    "--transformer-impl": ("local", "Transformer Engine needs a GPU"),
    "--distributed-backend": ("gloo", "NCCL needs a GPU"),
    "--use-cpu-initialization": ("", "weights are made on the CPU"),
    "--no-gradient-accumulation-fusion": ("", "the fused kernel needs a GPU"),
    "--no-masked-softmax-fusion": ("", "the fused kernel needs a GPU"),
    "--no-bias-gelu-fusion": ("", "torch.compile is off"),
    "--no-bias-swiglu-fusion": ("", "torch.compile is off"),
    "--no-bias-dropout-fusion": ("", "torch.compile is off"),
    "--no-rope-fusion": ("", "the fused kernel needs Transformer Engine"),
    "--no-persist-layer-norm": ("", "the fused kernel needs Apex"),
}

# Megatron FSDP scales gradients in the reduction itself, which only NCCL can.
_UNSCALED_SUMS = "--no-gradient-reduce-div-fusion"

REFUSED: dict[str, str] = {
    "--fp8-format": "FP8 needs Transformer Engine and a GPU of compute capability 8.9 or more",
    "--fp8-recipe": "FP8 needs Transformer Engine and a GPU of compute capability 8.9 or more",
    "--fp4-format": "FP4 needs Transformer Engine and a Blackwell GPU",
    "--fp8-param-gather": "FP8 needs Transformer Engine and a GPU of compute capability 8.9 or more",
    "--tp-comm-overlap": "communication overlap needs Transformer Engine: leave it out",
    "--use-flash-attn": "Flash Attention needs a GPU: leave it out",
    "--moe-grouped-gemm": "grouped GEMM needs a GPU: leave it out",
    "--moe-permute-fusion": "the fused permutation needs Transformer Engine: leave it out",
    "--moe-enable-deepep": "DeepEP needs a GPU: leave it out",
    "--use-torch-fsdp2": "FSDP2 needs a GPU: use --use-megatron-fsdp",
    "--enable-cuda-graph": "a CPU has no CUDA graphs: leave it out",
    "--external-cuda-graph": "a CPU has no CUDA graphs: leave --external-cuda-graph out",
    "--use-precision-aware-optimizer": "it needs Transformer Engine's FusedAdam: leave it out",
    "--optimizer-cpu-offload": "the optimizer is on the CPU already: leave it out",
    "--dataloader-inter-document-masking": "packed sequences need Transformer Engine: leave it out",
    "--sft": "packed sequences need Transformer Engine: leave it out",
    "--tp-comm-bootstrap-backend": "communication overlap needs Transformer Engine: leave it out",
    "--use-nccl-ub": "gloo has no NCCL user buffers: leave it out",
}


class UnsupportedError(TrainerError):
    """The cpu platform does not support a flag. The text names the flag, the reason and the remedy."""


def _value_after(argv: Sequence[str], flag: str) -> str | None:
    """Return the value of `flag`, as `--flag value` or `--flag=value`. The last one wins, as in argparse."""
    found = None
    for position, word in enumerate(argv):
        if word == flag and position + 1 < len(argv):
            found = argv[position + 1]
        elif word.startswith(flag + "="):
            found = word.removeprefix(flag + "=")
    return found


def adapt(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return Megatron's flags with those added that this platform requires, and the added words.

    Raises UnsupportedError for all flags that a CPU does not support or that contradict a required one.
    """
    given = {word.split("=", 1)[0] for word in argv if word.startswith("--")}
    refusals = [f"{flag}: {why}" for flag, why in REFUSED.items() if flag in given]
    experts = _value_after(argv, "--expert-model-parallel-size")
    dispatcher = _value_after(argv, "--moe-token-dispatcher-type")
    if (experts or "1") != "1" and dispatcher in ("alltoall", "flex"):
        refusals.append(
            f"--moe-token-dispatcher-type {dispatcher} with --expert-model-parallel-size {experts}: gloo "
            "has no all-to-all for it; use the dispatcher allgather, or 1"
        )
    tensor = _value_after(argv, "--tensor-model-parallel-size") or "1"
    if "--num-experts" in given and tensor != "1" and "--sequence-parallel" not in given:
        refusals.append(
            f"--num-experts with --tensor-model-parallel-size {tensor}: Megatron requires sequence "
            "parallelism for that; add --sequence-parallel, or use 1"
        )
    if (_value_after(argv, "--context-parallel-size") or "1") != "1":
        refusals.append("--context-parallel-size: ring attention needs Transformer Engine; use 1")
    added: list[str] = []
    for flag, (value, why) in REQUIRED.items():
        if flag not in given:
            added += [flag, value] if value else [flag]
        elif value and (found := _value_after(argv, flag)) != value:
            refusals.append(f"{flag} {found}: {why}; set it to {value} or leave it out")
    if MEGATRON_FSDP in given and _UNSCALED_SUMS not in given:
        added.append(_UNSCALED_SUMS)
    if refusals:
        raise UnsupportedError("not supported on the cpu platform: " + "; ".join(refusals))
    return [*argv, *added], added


def install() -> None:
    """Prepare this process to import Megatron without a GPU. Call it before that import."""
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    from megatron_trainer.platform import cuda_stand_in

    cuda_stand_in.install()

    import megatron.core.optimizer
    import megatron.core.optimizer.distrib_optimizer

    from megatron_trainer.platform import (
        fsdp_on_cpu,
        latent_attention,
        norm_names,
        split_norms,
        sums_of_one_rank,
    )
    from megatron_trainer.platform.adam import FusedAdamOnCpu

    latent_attention.install()
    norm_names.install()
    split_norms.install()
    sums_of_one_rank.install()
    fsdp_on_cpu.install()
    megatron.core.optimizer.Adam = FusedAdamOnCpu
    megatron.core.optimizer.USING_PYTORCH_OPTIMIZER = False
    megatron.core.optimizer.distrib_optimizer.HAVE_APEX_OR_TE = True
    megatron.core.optimizer.distrib_optimizer.USING_APEX_OPTIMIZER = True


def announce(added: Sequence[str]) -> None:
    """Print the first log line of a run without a GPU."""
    print(
        "megatron-train: platform cpu: NO GPU IS USED. A stand-in for torch.cuda runs Megatron's loop on the "
        f"CPU over gloo; for demonstrations and tests only. Flags added: {' '.join(added) or 'none'}",
        file=sys.stderr,
        flush=True,
    )
