"""A pod's launcher: starts the ranks, watches them and restarts them."""
