"""The recipe catalog: published settings as data, and the resolution of a recipe against them."""

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
