"""Models that are known by name and that no recipe trains, and why."""

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
        "Falcon-H1",
        ("falcon-h1",),
        f"its layers have attention beside a state-space mixer, which Megatron Core lacks; {_CONVERTED}",
    ),
    UnsupportedModel(
        "Gemma 4 31B",
        ("gemma-4-31b", "gemma4-31b"),
        f"Megatron Core's own loop lacks Gemma's layers; {_CONVERTED}",
    ),
    UnsupportedModel(
        "Kimi K3",
        ("kimi-k3",),
        f"it is not in Megatron-Bridge {RELEASE}, nor in the table of models that Megatron-Bridge publishes",
    ),
    UnsupportedModel(
        "Llama-Nemotron Super 49B and Ultra 253B",
        ("llama-3_3-nemotron-super", "llama-3_1-nemotron-ultra"),
        "its layers differ in width and some lack attention, and layouts are planned for equal ones;"
        f" {_CONVERTED}",
    ),
    UnsupportedModel(
        "MiMo-V2-Flash",
        ("mimo-v2",),
        "its layers differ in query groups and rotary base, and Megatron Core's have one of each;"
        f" {_CONVERTED}",
    ),
    UnsupportedModel(
        "MiniMax-M2, M2.5 and M2.7",
        ("minimax-m2",),
        "it normalizes queries and keys of all heads at once, and Megatron Core those of each head;"
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
