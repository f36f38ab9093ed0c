"""Hangs, bad losses, failed ranks and failed hardware: detection and classification."""
