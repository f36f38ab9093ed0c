"""Fuzzing of every text that others write: recipes, platform, catalog, pods' messages, status, journals."""
