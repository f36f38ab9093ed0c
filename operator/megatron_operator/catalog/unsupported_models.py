"""Models that are known by name and that have no entry, not even to be planned, and why."""

from dataclasses import dataclass
from typing import Final

from megatron_operator.catalog.bridge_tables import RELEASE


@dataclass(frozen=True, slots=True)
class UnsupportedModel:
    """A model, or several of the same layers."""

    title: str
    prefixes: tuple[str, ...]
    """What their names begin with, in lower case and without the organization."""
    reason: str
    """Follows the model and a colon."""


_CONVERTED: Final = f"Megatron-Bridge {RELEASE} converts its weights and has no recipe that trains it"

UNSUPPORTED: Final = (
    UnsupportedModel(
        "Kimi K3",
        ("kimi-k3",),
        f"it is not in Megatron-Bridge {RELEASE}, nor in the table of models that Megatron-Bridge publishes",
    ),
    UnsupportedModel(
        "Falcon 7B, 40B and 180B",
        ("falcon-7b", "falcon-40b", "falcon-180b"),
        f"it is not in Megatron-Bridge {RELEASE}, which has Falcon-H1",
    ),
    UnsupportedModel(
        "MiMo-V2-Flash",
        ("mimo-v2",),
        "its layers differ in query groups and rotary base, and Megatron Core's have one of each;"
        f" {_CONVERTED}",
    ),
)


def why_unsupported(name: str) -> str | None:
    """Why no recipe trains a model of Hugging Face, in any case; None for one that is not in the table."""
    model = name.rpartition("/")[2].lower()
    return next(
        (
            each.reason
            for each in UNSUPPORTED
            for prefix in each.prefixes
            if model.startswith(prefix) and not model[len(prefix) : len(prefix) + 1].isalnum()
        ),
        None,
    )
