"""`megatron-convert`: weights of Hugging Face models to Megatron's checkpoints and back, on CPUs."""
