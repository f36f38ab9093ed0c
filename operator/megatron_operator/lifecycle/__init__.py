"""The life of a run as pure functions: from a snapshot of the cluster to status, decision and actions."""
