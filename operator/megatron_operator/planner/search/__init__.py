"""Which layouts are possible, and which of them is chosen."""
