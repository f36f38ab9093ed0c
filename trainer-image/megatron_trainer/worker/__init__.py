"""One rank: Megatron's own training loop with hooks."""
