"""Mamba-2's operations in plain torch, for machines without a GPU, where their kernels do not run.

They have the names, arguments and results of those of mamba_ssm and causal_conv1d that Megatron's mixer
calls; gradients are torch's. Sources: Dao and Gu, "Transformers are SSMs" (2024), section 6, for the scan by
chunks; the documentation of mamba_ssm for the order of norm and gate.
"""

from typing import Any

import torch
from torch.nn import functional


def causal_conv1d_fn(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    seq_idx: torch.Tensor | None = None,
    activation: str | None = None,
) -> torch.Tensor:
    """Convolve each channel with its own past.

    `x` is [batch, channels, length], `weight` [channels, width], `bias` [channels]; the result is as `x`.
    `activation` is "silu", "swish" or None. Raises ValueError for packed sequences (`seq_idx`).
    """
    _refuse_packed(seq_idx)
    channels, width = weight.shape
    padded = functional.pad(x, (width - 1, 0))
    result = functional.conv1d(padded, weight[:, None].to(x.dtype), _as(bias, x), groups=channels)
    return functional.silu(result) if activation in ("silu", "swish") else result


def mamba_chunk_scan_combined(
    x: torch.Tensor,
    dt: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    chunk_size: int,
    D: torch.Tensor | None = None,
    z: torch.Tensor | None = None,
    dt_bias: torch.Tensor | None = None,
    seq_idx: torch.Tensor | None = None,
    dt_softplus: bool = False,
    **_: Any,
) -> torch.Tensor:
    """Return y of h_t = exp(dt_t A) h_(t-1) + dt_t B_t x_t and y_t = C_t h_t + D x_t, times SiLU(z).

    `x` and `z` are [batch, length, heads, width], `dt` [batch, length, heads], `A` [heads], `B` and `C`
    [batch, length, groups, state], `D` [heads] or [heads, width], `dt_bias` [heads]; the result is as `x`.
    Heads of a group share B and C. Computed in FP32 from a state of zeros.
    Raises ValueError for packed sequences (`seq_idx`).
    """
    _refuse_packed(seq_idx)
    step = dt.float() if dt_bias is None else dt.float() + dt_bias.float()
    step = functional.softplus(step) if dt_softplus else step
    each = x.shape[2] // B.shape[2]
    keys, queries = (part.float().repeat_interleave(each, dim=2) for part in (B, C))
    result = _scan(x.float() * step[..., None], step * A.float(), keys, queries, chunk_size)
    if D is not None:
        result = result + x.float() * (D if D.dim() == 2 else D[:, None]).float()
    if z is not None:
        result = result * functional.silu(z.float())
    return result.to(x.dtype)


def mamba_split_conv1d_scan_combined(
    zxbcdt: torch.Tensor,
    conv1d_weight: torch.Tensor,
    conv1d_bias: torch.Tensor | None,
    dt_bias: torch.Tensor,
    A: torch.Tensor,
    D: torch.Tensor,
    chunk_size: int,
    seq_idx: torch.Tensor | None = None,
    activation: str | None = "silu",
    headdim: int | None = None,
    ngroups: int = 1,
    **_: Any,
) -> torch.Tensor:
    """Convolve and scan what a mixer's first projection returns: z, x, B, C and dt, one behind the other.

    `zxbcdt` is [batch, length, 2 inner + 2 groups x state + heads], where inner is heads x `headdim`; the
    result is [batch, length, inner]. The others are as of the two functions above.
    """
    heads, width = D.shape if headdim is None else (*D.shape, headdim)
    inner = heads * width
    state = (conv1d_weight.shape[0] - inner) // 2
    z, xbc, dt = zxbcdt.split([inner, inner + 2 * state, heads], dim=-1)
    xbc = causal_conv1d_fn(xbc.transpose(1, 2), conv1d_weight, conv1d_bias, seq_idx, activation)
    x, b, c = xbc.transpose(1, 2).split([inner, state, state], dim=-1)
    result = mamba_chunk_scan_combined(
        x.unflatten(-1, (heads, width)),
        dt,
        A,
        b.unflatten(-1, (ngroups, -1)),
        c.unflatten(-1, (ngroups, -1)),
        chunk_size,
        D=D,
        z=z.unflatten(-1, (heads, width)),
        dt_bias=dt_bias,
        dt_softplus=True,
    )
    return result.flatten(-2)


class GatedGroupRMSNorm(torch.nn.Module):
    """RMSNorm of groups of `group_size` channels of inputs [..., channels], after the gate; in FP32."""

    tp_group: Any

    def __init__(
        self,
        channels: int,
        eps: float = 1e-5,
        group_size: int | None = None,
        device: Any = None,
        dtype: torch.dtype | None = None,
        **_: Any,
    ) -> None:
        super().__init__()
        self.eps, self.group_size = eps, group_size or channels
        self.weight = torch.nn.Parameter(torch.ones(channels, device=device, dtype=dtype))

    def forward(self, x: torch.Tensor, z: torch.Tensor | None = None) -> torch.Tensor:
        """Return the norm of x SiLU(z), or of x, in its type."""
        wide = x.float() if z is None else x.float() * functional.silu(z.float())
        groups = wide.unflatten(-1, (-1, self.group_size))
        scaled = groups * torch.rsqrt(groups.square().mean(-1, keepdim=True) + self.eps)
        return (scaled.flatten(-2) * self.weight.float()).to(x.dtype)

    def sharded_state_dict(
        self, prefix: str = "", sharded_offsets: Any = (), metadata: Any = None
    ) -> dict[str, Any]:
        """Return the weight as Megatron's checkpoints hold it, split over tensor-parallel ranks."""
        from megatron.core.transformer.utils import make_sharded_tensors_for_checkpoint

        return make_sharded_tensors_for_checkpoint(  # type: ignore[no-any-return]
            self.state_dict(prefix="", keep_vars=True),
            prefix,
            {"weight": 0},
            sharded_offsets,
            tp_group=self.tp_group,
            dp_cp_group=metadata["dp_cp_group"],
        )


def install() -> None:
    """Put these operations into Megatron's mixer."""
    from megatron.core.ssm import mamba_mixer

    module: Any = mamba_mixer
    module.causal_conv1d_fn = causal_conv1d_fn
    module.mamba_chunk_scan_combined = mamba_chunk_scan_combined
    module.mamba_split_conv1d_scan_combined = mamba_split_conv1d_scan_combined
    module.ExtendedRMSNorm = GatedGroupRMSNorm
    module.HAVE_MAMBA_SSM = True


def _refuse_packed(seq_idx: torch.Tensor | None) -> None:
    if seq_idx is not None:
        raise ValueError("packed sequences need the kernels of mamba_ssm, and those a GPU")


def _as(tensor: torch.Tensor | None, like: torch.Tensor) -> torch.Tensor | None:
    return None if tensor is None else tensor.to(like.dtype)


def _scan(
    inputs: torch.Tensor, decay: torch.Tensor, keys: torch.Tensor, queries: torch.Tensor, chunk_size: int
) -> torch.Tensor:
    """Return C_t h_t of h_t = exp(`decay`_t) h_(t-1) + `keys`_t `inputs`_t.

    [batch, length, heads, width] of inputs, [batch, length, heads] of decay, [batch, length, heads, state] of
    keys and queries. A chunk is attention without softmax; only its last state goes to the next one.
    """
    length = inputs.shape[1]
    # Steps of zero keep the state.
    padding = -length % chunk_size
    inputs, keys, queries = (
        functional.pad(part, (0, 0, 0, 0, 0, padding)).unflatten(1, (-1, chunk_size))
        for part in (inputs, keys, queries)
    )
    decay = functional.pad(decay, (0, 0, 0, padding)).unflatten(1, (-1, chunk_size)).cumsum(2)

    since = decay[:, :, :, None] - decay[:, :, None]
    past = torch.ones(chunk_size, chunk_size, dtype=torch.bool, device=inputs.device).tril()[..., None]
    kept = since.masked_fill(~past, -torch.inf).exp()
    result = torch.einsum(
        "bnlsh,bnshp->bnlhp", torch.einsum("bnlhk,bnshk->bnlsh", queries, keys) * kept, inputs
    )

    to_end = (decay[:, :, -1:] - decay).exp()[..., None]
    added = torch.einsum("bnlhk,bnlhp->bnhpk", keys * to_end, inputs)
    states = [torch.zeros_like(added[:, 0])]
    for chunk in range(added.shape[1] - 1):
        states.append(states[-1] * decay[:, chunk, -1].exp()[..., None, None] + added[:, chunk])
    carried = torch.einsum("bnlhk,bnhpk->bnlhp", queries * decay.exp()[..., None], torch.stack(states, 1))
    return (result + carried).flatten(1, 2)[:, :length]
