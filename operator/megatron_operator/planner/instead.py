"""What fits where no recipe that the operator can start does: a larger count, adapters, a smaller model."""

import re
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace

from megatron_operator.api.errors import FieldError, InvalidRecipeError
from megatron_operator.api.platform import PlatformConfig
from megatron_operator.api.recipe import AcceleratorSpec, MegatronRecipeSpec
from megatron_operator.catalog import Catalog, Entry
from megatron_operator.catalog.accelerator import select_accelerator
from megatron_operator.planner.admission import admit
from megatron_operator.planner.candidates import Query
from megatron_operator.planner.recommend import Limits, Recommendation, recommend

MAX_COUNT = 2048
"""Accelerators up to which larger counts are tried."""
_MANY = re.compile(r"[\d.]+[bmt]|moe|dense|vlm|vision|audio|diffusion")


def names_one_model(model: str | None) -> bool:
    """Whether a query names a model or family, not a size or a kind, by which many are meant."""
    return model is not None and _MANY.fullmatch(model.lower()) is None


def what_fits(
    query: Query,
    found: list[Recommendation],
    platform: PlatformConfig,
    catalog: Catalog,
    limits: Limits = nullcontext,
) -> list[str]:
    """Recipes that the operator can start, as `NAME on COUNT`; `found` are the query's recommendations."""
    return list(_what_fits(query, found, platform, catalog, limits))


def _what_fits(
    query: Query, found: list[Recommendation], platform: PlatformConfig, catalog: Catalog, limits: Limits
) -> Iterator[str]:
    too_large = next((each.entry for each in found if each.entry.starts and each.plan is None), None)
    if too_large and (count := _count(too_large, query, platform, catalog, limits)):
        yield f"{too_large.name} on {count}"
    if query.mode != "lora" and (name := _first(replace(query, mode="lora"), platform, catalog, limits)):
        yield f"{name} on {query.gpus} (--mode lora)"
    if too_large is None:
        return  # what was asked for is nothing that the operator starts: a smaller model is no answer
    for model in (too_large.family, None):
        if name := _first(replace(query, model=model), platform, catalog, limits):
            yield f"{name} on {query.gpus}"
            return


def _first(query: Query, platform: PlatformConfig, catalog: Catalog, limits: Limits) -> str | None:
    """The best recipe for a query that the operator can start."""
    try:
        found = recommend(query, platform, catalog, limits)
    except InvalidRecipeError:
        return None
    return next((each.entry.name for each in found if each.runnable), None)


def _count(
    entry: Entry, query: Query, platform: PlatformConfig, catalog: Catalog, limits: Limits
) -> int | None:
    """The first of the larger counts to try on which a recipe fits."""
    picked = select_accelerator(AcceleratorSpec(type=query.accelerator, count=query.gpus), platform)
    if isinstance(picked, FieldError):
        return None
    for count in _larger(query.gpus, picked[1].per_node):
        accelerator = {"count": count} | ({"type": query.accelerator} if query.accelerator else {})
        spec = {"recipe": entry.name, "accelerator": accelerator, "data": {"mockData": True}}
        try:
            with limits():
                admit(entry.name, MegatronRecipeSpec.model_validate(spec), platform, catalog)
        except InvalidRecipeError:
            continue
        return count
    return None


def _larger(count: int, per_node: int) -> list[int]:
    """Counts above this one: the next of whole nodes, doublings of it, of the count and of a node."""
    nodes = -(-count // per_node) * per_node
    sizes = {each << k for each in (count, nodes, per_node) for k in range(MAX_COUNT.bit_length())}
    suited = {size for size in sizes if size < per_node or size % per_node == 0}
    return sorted(size for size in suited if count < size <= MAX_COUNT)
