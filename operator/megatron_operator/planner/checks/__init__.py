"""Checks for settings that Megatron rejects, ignores or fails on later."""
