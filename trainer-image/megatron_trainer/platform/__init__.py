"""Where Megatron runs: real GPUs, or the CPU stand-in for the demo and for tests."""
