"""Kubernetes operator that turns a named recipe into a Megatron Core training run and keeps it running."""
