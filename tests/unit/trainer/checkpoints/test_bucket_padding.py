"""The place of gathered states in a buffer whose buckets have padding at their ends."""

from types import SimpleNamespace

import torch
from megatron_trainer.checkpoints.bucket_padding import padded

# Two buckets: of 3 + 2 elements, with a gap between parameters and padding up to 8, and of 4.
PLACES = {"embedding": (0, 3, 0), "norm": (4, 6, 0), "output": (8, 12, 1)}
BUCKETS = [
    SimpleNamespace(params={"embedding", "norm"}, numel_unpadded=6),
    SimpleNamespace(params={"output"}, numel_unpadded=4),
]


def test_states_of_later_buckets_are_where_their_parameters_are() -> None:
    found = padded(torch.tensor([1, 1, 1, 0, 2, 2, 3, 3, 3, 3]), BUCKETS, PLACES)
    assert found.tolist() == [1, 1, 1, 0, 2, 2, 0, 0, 3, 3, 3, 3]


def test_states_without_padding_between_them_are_not_copied() -> None:
    places = {name: PLACES[name] for name in ("embedding", "norm")}
    values = torch.tensor([1, 1, 1, 0, 2, 2])
    assert padded(values, BUCKETS[:1], places) is values
