"""Which checkpoint a run starts from, who may write one, and what is kept."""
