"""The fault table: faults, how each is injected, and what must hold afterwards."""
