"""What Megatron's asynchronous checkpoint writers are given."""

import torch
from megatron_trainer.checkpoints.async_checkpoint_writers import snapshot


def test_a_snapshot_keeps_values_that_training_changes_in_place_on_the_cpu() -> None:
    weight = torch.ones(3)
    ((_, _, (_, ((_, saved),))),) = snapshot([("file", "key", ([], [("item", weight)]))], non_blocking=False)
    weight.add_(1.0)
    assert saved.tolist() == [1.0, 1.0, 1.0]
