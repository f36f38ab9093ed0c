"""Samples that share a sequence have the losses and gradients that each has alone, in a small model."""

from itertools import pairwise
from pathlib import Path
from typing import Any

from testkit.weights.families import by_name, write_model

_LENGTHS = (7, 20, 1, 12)
_EQUAL = (12, 12, 12, 12)
"""Multi-token prediction averages its loss over a micro batch: that of each of these is a quarter of it."""


def prove_packed(name: str, folder: Path) -> dict[str, float]:
    """Return the largest differences from samples alone, in float32.

    `loss` and `gradient`: of packed samples; `unbounded loss`: of one sample with the tokens of all of them.
    `largest gradient` is that of samples alone. GPT-OSS has no gradients: `gradient` is 0.
    """
    import torch
    from megatron.core.packed_seq_params import PackedSeqParams
    from megatron_trainer.weights import checkpoint, conversion, cpu_model, huggingface_folder

    family = by_name(name)
    write_model(family, folder / "model")
    read = huggingface_folder.read(folder / "model", "--from", weights=True)
    lengths = _EQUAL if family.predicts else _LENGTHS
    ids = (torch.arange(sum(lengths) + 1) ** 2 * 7 % 250)[None]
    positions = torch.cat([torch.arange(length) for length in lengths])[None]
    # Experts with a bias add it in place to a view, which autograd refuses.
    learns = name != "GPT-OSS"
    with cpu_model.one_process(), torch.set_grad_enabled(learns):
        bridge = cpu_model.make_bridge(read)
        model = cpu_model.make_model(bridge, "float32")
        weights = conversion.weights_of(bridge, model, read)
        with torch.no_grad():
            for parameter, tensor in checkpoint.tensors(model):
                tensor.copy_(weights(parameter))

        def run(start: int, end: int, ends: list[int] | None) -> Any:
            mask, packed = None, None
            if ends is None:
                mask = torch.ones((1, 1, end - start, end - start), dtype=torch.bool).triu(1)
            else:
                longest = max(after - before for before, after in pairwise(ends))
                bounds = torch.tensor(ends, dtype=torch.int32)
                packed = PackedSeqParams(
                    qkv_format="thd",
                    cu_seqlens_q=bounds,
                    cu_seqlens_kv=bounds,
                    max_seqlen_q=longest,
                    max_seqlen_kv=longest,
                )
            losses = model(
                ids[:, start:end],
                positions[:, start:end],
                mask,
                labels=ids[:, start + 1 : end + 1],
                packed_seq_params=packed,
            )
            if learns:
                losses.sum().backward()
            return losses.detach().flatten()

        def gradients() -> Any:
            parts = [each.grad.flatten() for each in model.parameters() if each.grad is not None]
            model.zero_grad(set_to_none=True)
            return torch.cat(parts) if parts else torch.zeros(1)

        ends = [0, *torch.tensor(lengths).cumsum(0).tolist()]
        model.config.mtp_loss_scaling_factor /= len(lengths)
        alone = torch.cat([run(first, end, None) for first, end in pairwise(ends)])
        expected = gradients()
        model.config.mtp_loss_scaling_factor *= len(lengths)
        # As Bridge has it: samples of no length fill up the boundaries.
        packed = run(0, ends[-1], [*ends, ends[-1]])
        found = gradients()
        unbounded = run(0, ends[-1], [0, ends[-1]])
    return {
        "loss": float((packed - alone).abs().max()),
        "gradient": float((found - expected).abs().max()),
        "largest gradient": float(expected.abs().max()),
        "unbounded loss": float((unbounded - alone).abs().max()),
    }
