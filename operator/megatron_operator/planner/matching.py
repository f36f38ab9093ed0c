"""Matches entries of the catalog by name, family, size or kind of model."""

import math
import re
from typing import NamedTuple

from megatron_operator.api.diagnostics import Diagnostics
from megatron_operator.catalog import Entry
from megatron_operator.catalog.unsupported_models import why_unsupported
from megatron_operator.planner.estimate.model_shape import model_shape
from megatron_operator.planner.estimate.parameters import parameters

MAX_SIZE_RATIO = 1.6
"""Largest ratio of sizes at which a model of another family matches."""
MAX_FAMILY_SIZE_RATIO = 4.0
"""Largest ratio of sizes at which a model of the same family matches."""
_UNITS = {"m": 1e6, "b": 1e9, "t": 1e12}
_SIZE = re.compile(r"(?:^|[-_ ]|(?<=[a-z]))(\d+(?:\.\d+)?)([bmt])(?![a-z0-9])")


class Match(NamedTuple):
    """How an entry matches; smaller is closer."""

    rank: int
    """0 exact name, 1 prefix, family or kind, 2 the family with another size, 3 a similar size."""
    factor: float = 0.0
    """Binary logarithm of the ratio of the sizes, in steps of 0.1."""
    by: str = "name"


MAX_PARAMETERS_BY_COUNT = ((128, None), (16, 80e9), (8, 16e9), (4, 8e9), (1, 4e9))
"""Without a name: (minimum accelerators, maximum parameters of a dense model), as Megatron-Bridge's index
recommends (8B-16B on a node, 70B on 16 to 64, 405B from 128); twice that for experts,
and for LoRA.
"""


def size_of(entry: Entry) -> int | None:
    """Number of parameters, from the model's shape, else from the name."""
    shape = model_shape(entry.model, Diagnostics())
    return parameters(shape, shape.vocab) if shape else _billions(entry.name)


def generation(name: str) -> tuple[str, int]:
    """Sort key of models that match equally: by stem, then the newest generation first."""
    found = re.match(r"([a-z]+)(\d*)", name)
    return (found[1], -int(found[2] or 0)) if found else (name, 0)


def match(model: str | None, entry: Entry, size: int | None) -> Match | None:
    """How an entry of `size` parameters matches; none for no match. Without a model all entries match."""
    if model is None:
        return Match(0, by="kind")
    text = model.lower()
    if not text:
        return None  # every name begins with it
    if text == entry.name or text in entry.aliases:
        return Match(0)
    if _begins(entry.name, text) or text == entry.family:
        return Match(1)
    if text in _kinds(entry):
        return Match(1, by="kind")
    asked = _billions(text)
    if asked is None or size is None or entry.planned_only is not None or why_unsupported(text):
        return None  # what has no function stands in for no other model, and nothing for one that is known
    factor = max(asked / size, size / asked)
    distance = round(math.log2(factor), 1)
    stem = _SIZE.split(text, maxsplit=1)[0].rstrip("-")
    if stem and (_begins(entry.name, stem) or entry.family == stem) and factor <= MAX_FAMILY_SIZE_RATIO:
        return Match(2, distance, "size")
    # A family that the catalog does not have is no reason to offer another one.
    if not stem and factor <= MAX_SIZE_RATIO:
        return Match(3, 0.0 if _billions(entry.name) == asked else distance, "size")
    return None


def has_other_size(model: str, name: str) -> bool:
    """Whether the name of an entry rules out a match, without building the entry."""
    asked, own = _billions(model.lower()), _billions(name)
    # Names round: a 7B may have 6.7 or 8.2 billion parameters.
    return (
        asked is not None and own is not None and max(asked / own, own / asked) > 1.5 * MAX_FAMILY_SIZE_RATIO
    )


def _begins(name: str, text: str) -> bool:
    """Whether a name begins with these words: `llama` matches any Llama, `kimi-k2` not `kimi-k2.5-vl`."""
    following = name[len(text) : len(text) + 1]
    return name.startswith(text) and (text.isalpha() or not (following.isdigit() or following == "."))


def is_language_model(entry: Entry) -> bool:
    """Whether it is a plain language model; others need to be requested by kind or name."""
    return not _kinds(entry) & {"vlm", "audio", "diffusion"}


def _kinds(entry: Entry) -> set[str]:
    words = entry.description.lower()
    if entry.family == "diffusion":
        return {"diffusion"}
    if entry.aligns_projector:
        return {"vlm", "vision"}
    kinds = {"moe" if entry.model.num_experts else "dense"} if entry.model.num_layers else set()
    if "vision" in words or "vl" in entry.name.split("-"):
        kinds |= {"vlm", "vision"}
    if "sound" in words:
        kinds |= {"audio"}
    return kinds


def _billions(text: str) -> int | None:
    found = _SIZE.search(text)
    # Zero parameters are no size.
    return round(float(found[1]) * _UNITS[found[2]]) or None if found else None


def is_comfortable(entry: Entry, size: int | None, gpus: int, mode: str) -> bool:
    """Whether a model of `size` parameters is not too large for what is usual on so many accelerators."""
    most = next(most for least, most in MAX_PARAMETERS_BY_COUNT if gpus >= least)
    if most is None:
        return True
    return (size or 0) <= most * (2 if entry.model.num_experts else 1) * (2 if mode == "lora" else 1)
