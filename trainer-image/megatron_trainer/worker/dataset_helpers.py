"""Megatron's compiled dataset helpers, which build the index of a corpus.

Rank 0 of Megatron runs `make` in its dataset package at every start. The wheel has the compiled module and no
Makefile, so that `make` fails and Megatron exits with 1.
"""

from megatron.core.datasets import utils


def skip_build() -> None:
    """Make Megatron use the compiled helpers that are installed. Without them it still runs `make`."""
    try:
        import megatron.core.datasets.helpers_cpp  # noqa: F401
    except ImportError:
        return
    utils.compile_helpers = lambda: None
