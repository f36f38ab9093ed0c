"""What gated delta nets run on without a GPU, against the definitions."""

import pytest
import torch
from megatron.core.ssm.gated_delta_net import torch_chunk_gated_delta_rule
from megatron_trainer.bridge import gated_delta_net
from torch.nn import functional

HEADS, KEY, VALUE, CHUNK = 3, 4, 5, 64


def values(*shape: int, seed: int) -> torch.Tensor:
    """Random numbers that gradients flow to."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).requires_grad_()


def recurrence(q, k, v, g, beta):  # type: ignore[no-untyped-def]
    """One position after the other: the state forgets, and learns the value of a key."""
    state, result = torch.zeros(2, HEADS, KEY, VALUE), []
    for t in range(q.shape[1]):
        state = state * g[:, t].exp()[..., None, None]
        known = (state * k[:, t, :, :, None]).sum(-2)
        learned = (v[:, t] - known) * beta[:, t, :, None]
        state = state + k[:, t, :, :, None] * learned[:, :, None]
        result.append((state * q[:, t, :, :, None]).sum(-2) / KEY**0.5)
    return torch.stack(result, 1)


@pytest.mark.parametrize("length", [1, CHUNK + 7], ids="{} positions".format)
def test_the_delta_rule_by_chunks_has_values_and_gradients_of_the_recurrence(length: int) -> None:
    given = [
        gated_delta_net.l2norm(values(2, length, HEADS, KEY, seed=0)),
        gated_delta_net.l2norm(values(2, length, HEADS, KEY, seed=1)),
        values(2, length, HEADS, VALUE, seed=2),
        -functional.softplus(values(2, length, HEADS, seed=3)),
        values(2, length, HEADS, seed=4).sigmoid(),
    ]
    given = [tensor.detach().requires_grad_() for tensor in given]
    weights = torch.linspace(-1, 1, 2 * length * HEADS * VALUE).view(2, length, HEADS, VALUE)

    q, k, v, g, beta = given
    found, state = torch_chunk_gated_delta_rule(q, k, v, g=g, beta=beta)
    expected = recurrence(*given)

    assert state is None
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    for mine, theirs in zip(
        torch.autograd.grad((found * weights).sum(), given),
        torch.autograd.grad((expected * weights).sum(), given),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-4)


def test_the_convolution_takes_positions_before_channels_and_sees_no_later_one() -> None:
    x, weight = values(1, 10, 6, seed=0), values(6, 4, seed=1)
    changed = x.detach().clone()
    changed[:, 7:] += 1

    before, state = gated_delta_net.causal_conv1d(x, weight, activation="silu")
    after, _ = gated_delta_net.causal_conv1d(changed, weight, activation="silu")

    assert state is None
    torch.testing.assert_close(before[0, 7], functional.silu((weight * x[0, 4:8].T).sum(1)))
    assert torch.equal(before[:, :7], after[:, :7])
    assert not torch.equal(before[:, 7], after[:, 7])


def test_queries_and_keys_have_length_one_and_a_vector_of_zeros_stays_finite() -> None:
    vectors = torch.tensor([[3.0, 4.0], [0.0, 0.0]])
    torch.testing.assert_close(gated_delta_net.l2norm(vectors), torch.tensor([[0.6, 0.8], [0.0, 0.0]]))


def test_packed_sequences_are_refused() -> None:
    with pytest.raises(ValueError, match="packed sequences need the kernels of flash-linear-attention"):
        gated_delta_net.causal_conv1d(
            values(1, 10, 6, seed=0), values(6, 4, seed=1), cu_seqlens=torch.tensor([0, 4, 10])
        )
