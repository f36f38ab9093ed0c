"""Datasets that a run only evaluates on: entries of `data.sources` and `data.blend` with `validation`."""

from collections.abc import Iterator, Mapping
from typing import Any

from megatron_operator.api.errors import FieldError, shown


def listed(data: Mapping[str, Any]) -> tuple[str, list[Mapping[str, Any]]]:
    """The field that lists the datasets of `data`, and its entries."""
    name = "sources" if data.get("sources") else "blend"
    return name, list(data.get(name) or ())


def has_validation_sets(data: Mapping[str, Any]) -> bool:
    """Whether a dataset is for validation alone, so that the others are not split."""
    return any(entry.get("validation") for entry in listed(data)[1])


def validation_set_errors(
    data: Mapping[str, Any], *, split_asked: bool, evaluates: bool
) -> Iterator[FieldError]:
    """Errors of datasets for validation alone.

    `split_asked`: the recipe itself sets `data.split`. `evaluates`: the run makes evaluations.
    """
    name, entries = listed(data)
    chosen = [number for number, entry in enumerate(entries) if entry.get("validation")]
    if not chosen:
        return
    at = f"spec.data.{name}"
    trained = {entry.get("path") for entry in entries if not entry.get("validation")}
    for number in chosen:
        if entries[number].get("path") in trained:
            message = f"{shown(entries[number]['path'])} is trained on too: its loss is no validation"
            yield FieldError(f"{at}[{number}].path", message, "name another dataset, or leave this entry out")
    if len(chosen) == len(entries):
        yield FieldError(at, "all are for validation alone", "list at least one to train on")
    if split_asked:
        message = (
            f"has no effect: {name}[{chosen[0]}] is the validation data, and all others are for training"
        )
        yield FieldError("spec.data.split", message, f"leave it out, or validation of {name}[{chosen[0]}]")
    if not evaluates:
        message = "has no effect with training.evalIters: 0"
        fix = "leave it out, or set training.evalIters to 1 or more"
        yield FieldError(f"{at}[{chosen[0]}].validation", message, fix)
