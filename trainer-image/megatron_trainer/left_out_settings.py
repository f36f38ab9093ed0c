"""Settings of a model that megatron-core 0.19.2 has as arguments, and leaves out of the configuration."""

from typing import Any

_OF_LATENT_ATTENTION = ("original_max_position_embeddings", "beta_fast", "beta_slow")
"""YaRN of latent attention, for which Megatron has no argument; those of other models begin with `yarn_`."""


def complete(config: Any, args: Any) -> None:
    """Give a model's configuration those of its args; all models would get a rope_scaling_factor of 8."""
    config.rope_scaling_factor = args.rope_scaling_factor
    if args.multi_latent_attention:
        for name in _OF_LATENT_ATTENTION:
            if (given := getattr(args, f"yarn_{name}")) is not None:
                setattr(config, name, given)
