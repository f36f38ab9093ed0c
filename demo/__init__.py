"""The demo: a real cluster, a real training run, a killed pod, and the run that recovers from it."""
