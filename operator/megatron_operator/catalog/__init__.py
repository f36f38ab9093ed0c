"""The recipe library: proven settings as data, and how a recipe is resolved against them."""

from megatron_operator.catalog.catalog import Catalog, load
from megatron_operator.catalog.entry import Correction, Entry, PublishedLayout
from megatron_operator.catalog.resolve import resolve, resolve_for_planning
from megatron_operator.catalog.resolved import ResolvedRecipe

__all__ = [
    "Catalog",
    "Correction",
    "Entry",
    "PublishedLayout",
    "ResolvedRecipe",
    "load",
    "resolve",
    "resolve_for_planning",
]
