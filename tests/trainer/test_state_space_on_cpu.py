"""Mamba-2's operations in plain torch, against the recurrence that defines them."""

import pytest
import torch
from megatron_trainer.bridge import state_space_on_cpu as operations
from torch.nn import functional

HEADS, WIDTH, GROUPS, STATE, CHUNK = 4, 3, 2, 5, 8


def values(*shape: int, seed: int) -> torch.Tensor:
    """Random numbers that gradients flow to."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).requires_grad_()


def inputs(length: int) -> dict[str, torch.Tensor]:
    """Arguments of a scan over two sequences."""
    return {
        "x": values(2, length, HEADS, WIDTH, seed=0),
        "dt": values(2, length, HEADS, seed=1),
        "A": (-values(HEADS, seed=2).exp()).detach().requires_grad_(),
        "B": values(2, length, GROUPS, STATE, seed=3),
        "C": values(2, length, GROUPS, STATE, seed=4),
        "D": values(HEADS, seed=5),
        "z": values(2, length, HEADS, WIDTH, seed=6),
        "dt_bias": values(HEADS, seed=7),
    }


def recurrence(x, dt, A, B, C, D, z, dt_bias):  # type: ignore[no-untyped-def]
    """One step after the other."""
    step = functional.softplus(dt + dt_bias)
    state, result = torch.zeros(2, HEADS, WIDTH, STATE), []
    for t in range(x.shape[1]):
        b, c = (part[:, t].repeat_interleave(HEADS // GROUPS, 1) for part in (B, C))
        now = step[:, t]
        state = state * (now * A).exp()[..., None, None]
        state = state + (now[..., None] * x[:, t])[..., None] * b[:, :, None]
        y = (state * c[:, :, None]).sum(-1) + D[:, None] * x[:, t]
        result.append(y * functional.silu(z[:, t]))
    return torch.stack(result, 1)


@pytest.mark.parametrize("length", [1, CHUNK, 3 * CHUNK - 5], ids="{} positions".format)
def test_the_scan_by_chunks_has_values_and_gradients_of_the_recurrence(length: int) -> None:
    given = inputs(length)
    weights = torch.linspace(-1, 1, 2 * length * HEADS * WIDTH).view(2, length, HEADS, WIDTH)

    found = operations.mamba_chunk_scan_combined(**given, chunk_size=CHUNK, dt_softplus=True)
    expected = recurrence(**given)

    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    for name, mine, theirs in zip(
        given,
        torch.autograd.grad((found * weights).sum(), list(given.values())),
        torch.autograd.grad((expected * weights).sum(), list(given.values())),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-4, msg=f"gradient of {name}")


def test_strong_decay_gives_finite_gradients() -> None:
    given = inputs(3 * CHUNK) | {"A": torch.full((HEADS,), -300.0, requires_grad=True)}
    operations.mamba_chunk_scan_combined(**given, chunk_size=CHUNK, dt_softplus=True).sum().backward()
    assert all(bool(tensor.grad is not None and tensor.grad.isfinite().all()) for tensor in given.values())


def test_the_convolution_sees_no_later_position() -> None:
    x, weight, bias = values(1, 6, 10, seed=0), values(6, 4, seed=1), values(6, seed=2)
    changed = x.detach().clone()
    changed[..., 7:] += 1

    before = operations.causal_conv1d_fn(x, weight, bias, activation="silu")
    after = operations.causal_conv1d_fn(changed, weight, bias, activation="silu")

    expected = (weight * x[0, :, 4:8]).sum(1) + bias
    torch.testing.assert_close(before[0, :, 7], functional.silu(expected))
    assert torch.equal(before[..., :7], after[..., :7])
    assert not torch.equal(before[..., 7], after[..., 7])


def test_the_combined_operation_takes_the_projection_apart_as_the_mixer_does() -> None:
    length, inner, state = 11, HEADS * WIDTH, GROUPS * STATE
    given = inputs(length)
    weight, bias = values(inner + 2 * state, 4, seed=8), values(inner + 2 * state, seed=9)
    packed = torch.cat([given[name].flatten(2) for name in ("z", "x", "B", "C", "dt")], dim=-1)
    convolved = operations.causal_conv1d_fn(
        packed[..., inner : 2 * inner + 2 * state].transpose(1, 2), weight, bias, activation="silu"
    ).transpose(1, 2)
    x, b, c = convolved.split([inner, state, state], dim=-1)
    parts = {
        "x": x.unflatten(-1, (HEADS, WIDTH)),
        "B": b.unflatten(-1, (GROUPS, STATE)),
        "C": c.unflatten(-1, (GROUPS, STATE)),
    }

    found = operations.mamba_split_conv1d_scan_combined(
        packed,
        weight,
        bias,
        given["dt_bias"],
        given["A"],
        given["D"],
        CHUNK,
        headdim=WIDTH,
        ngroups=GROUPS,
    )

    torch.testing.assert_close(found, recurrence(**given | parts).flatten(2), rtol=1e-4, atol=1e-5)


def test_packed_sequences_are_refused() -> None:
    with pytest.raises(ValueError, match="packed sequences need the kernels of mamba_ssm"):
        operations.causal_conv1d_fn(
            values(1, 6, 10, seed=0), values(6, 4, seed=1), seq_idx=torch.zeros(1, 10)
        )


def test_the_norm_is_of_each_group_after_the_gate() -> None:
    norm = operations.GatedGroupRMSNorm(6, eps=0.0, group_size=3)
    x, z = torch.tensor([[3.0, 0, 0, 0, 5, 0]]), torch.tensor([[1.0, 1, 1, 2, 2, 2]])

    torch.testing.assert_close(norm(x, z), torch.tensor([[3**0.5, 0, 0, 0, 3**0.5, 0]]))
