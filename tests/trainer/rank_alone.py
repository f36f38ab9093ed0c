"""One rank of a Megatron-Bridge run without a launcher, which notes what it builds and how it changes.

    python -m tests.trainer.rank_alone RESULT ARGUMENT...

The arguments are those of a trainer's container. RESULT gets the losses of the iterations, the names of the
tensors that were trained, and of those that the iterations have changed, and fields of the model's
configuration. Ends with the exit code of the rank. Forked from a WarmProcess, it takes about a second.
"""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

FIELDS = (
    *("num_layers", "num_moe_experts", "moe_shared_expert_intermediate_size", "mtp_num_layers"),
    *("share_embeddings_and_output_weights", "multi_latent_attention", "q_lora_rank", "add_qkv_bias"),
    *("qk_layernorm", "hybrid_layer_pattern", "experimental_attention_variant", "num_query_groups"),
)
"""Of the model's configuration."""


class Notes:
    """What a rank does in each iteration. `step`: the loop's function."""

    def __init__(self, step: Callable[..., Any]) -> None:
        self._step = step
        self._before: dict[str, Any] = {}
        self.found: dict[str, Any] = {"losses": []}

    def step(self, *args: Any, **kwargs: Any) -> Any:
        """Take the place of the loop's function."""
        model, config = args[2], args[5].cfg.model
        trained = {
            name: value for part in model for name, value in part.named_parameters() if value.requires_grad
        }
        if not self._before:
            self._before = {name: value.detach().clone() for name, value in trained.items()}
            self.found["tensors"] = [name for part in model for name, _ in part.named_parameters()]
            self.found["trained"] = list(trained)
            self.found["model"] = {name: getattr(config, name, None) for name in FIELDS}
        result = self._step(*args, **kwargs)
        self.found["losses"].append({name: float(value.reshape(-1)[0]) for name, value in result[0].items()})
        self.found["changed"] = [
            name for name, value in trained.items() if not value.equal(self._before[name])
        ]
        return result


def main(result: Path, argv: list[str]) -> int:
    """Train as the only rank, of a process group of its own. Returns its exit code."""
    os.setpgid(0, 0)
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    from megatron.bridge.training import train
    from megatron_trainer.bridge import rank

    notes = Notes(train.train_step)
    train.train_step = notes.step
    code = rank.run_rank(argv, forked=True)
    result.write_text(json.dumps(notes.found))
    return code


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
