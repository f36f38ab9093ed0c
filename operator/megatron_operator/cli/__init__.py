"""The commands `megatron` and `kubectl megatron`: plan, validate and render without a cluster."""
