"""`megatron` on the shell and `kubectl megatron`: the operator's own stages, without a cluster."""
