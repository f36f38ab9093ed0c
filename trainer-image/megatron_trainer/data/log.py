"""The log of a pod of `megatron-prepare`."""


def log(text: str) -> None:
    """Print a line to the log of the pod. A name that is not UTF-8 does not end the worker."""
    shown = text.encode(errors="backslashreplace").decode()
    print(f"megatron-prepare: {shown}", flush=True)
