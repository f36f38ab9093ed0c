"""Pod entrypoint of a training run: Megatron Core's own loop, started, watched and restarted."""
