"""When and in which order: the only part that knows kopf and the API server."""
