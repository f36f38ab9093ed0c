"""Whether a model has positions for the sequences of a run."""

from collections.abc import Mapping
from typing import Any

from megatron_operator.api.diagnostics import Diagnostics
from megatron_operator.catalog.entry import Entry
from megatron_operator.catalog.merge import Settings


def check(model: dict[str, Any], training: Settings, found: Diagnostics) -> None:
    """Fill in maxPositionEmbeddings, and check that the sequence is not longer."""
    seq_length = training.get("seqLength")
    if seq_length is None:
        return
    if "maxPositionEmbeddings" not in model:
        model["maxPositionEmbeddings"] = seq_length
        found.origin("model.maxPositionEmbeddings", "training.seqLength")
    longest = model["maxPositionEmbeddings"]
    if seq_length > longest:
        found.error(
            "spec.training.seqLength",
            f"{seq_length} is above model.maxPositionEmbeddings {longest}",
            f"set seqLength to at most {longest}, or model.maxPositionEmbeddings to {seq_length}",
        )


def check_of_bridge(entry: Entry, merged: Mapping[str, Settings], found: Diagnostics) -> None:
    """Check that the sequence is not longer than the positions of a model that Megatron-Bridge builds.

    A note where it may be: packed samples, each with positions from 0, and an existing model, whose own
    `config.json` counts.
    """
    longest = merged["model"].get("maxPositionEmbeddings")
    seq_length = merged["training"].get("seqLength")
    if entry.model.diffusion is not None or longest is None or seq_length is None or seq_length <= longest:
        return
    above = f"{seq_length} is above the {longest} positions of {entry.name}'s model"
    if merged["data"].get("packing"):
        found.note(f"training.seqLength {above}: no sample that is packed should be longer than these")
    elif entry.fine_tunes:
        found.note(
            f"training.seqLength {above} in the catalog: that of the run must have as many"
            " (max_position_embeddings in its config.json)"
        )
    else:
        fix = f"set at most {longest}, or choose a recipe of a model with more positions"
        found.error("spec.training.seqLength", above, fix)
