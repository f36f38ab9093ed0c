"""The part that does I/O: watches, reads and writes the API server, polls pods, serves the webhook."""
