"""Settings that Megatron refuses, ignores or only fails on later."""
