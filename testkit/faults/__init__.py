"""The fault table: each fault, how it is injected, and what must hold afterwards."""
