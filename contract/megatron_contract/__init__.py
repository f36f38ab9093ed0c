"""The protocol between operator and trainer: typed messages and constants. Standard library only."""
