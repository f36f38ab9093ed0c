"""Progress, incidents and metrics of a run."""
