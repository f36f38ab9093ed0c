"""What deleted runs have used, as the operator has recorded it in its ConfigMaps."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from megatron_operator.cli.errors import CommandError
from megatron_operator.cli.kubectl import Kubectl
from megatron_operator.lifecycle.usage_records import CONFIG_MAPS, NamespaceUse, RecordError, Records, total

NOT_COUNTED: Final = "Runs that were deleted are not counted"


@dataclass(frozen=True, slots=True)
class DeletedRuns:
    """By namespace; none where they are not known."""

    by_namespace: Mapping[str, NamespaceUse] = field(default_factory=dict)
    not_counted: str | None = f"{NOT_COUNTED}."
    """A sentence; None where they are known."""


UNKNOWN: Final = DeletedRuns()


def read_records(kubectl: Kubectl, operator_namespace: str) -> list[Records] | str:
    """The records of the ConfigMaps in the operator's namespace, or why there are none."""
    there = Kubectl(operator_namespace, kubectl.context, kubectl.kubeconfig)
    try:
        found = there.find(["configmaps", *CONFIG_MAPS])
    except CommandError as error:
        return error.errors[0].message
    if not found:
        return no_records(operator_namespace)
    try:
        return [Records.read(each.get("data")) for each in found]
    except RecordError as error:
        return str(error)


def no_records(operator_namespace: str) -> str:
    """Why nothing is known of deleted runs: the operator is in another namespace, or records nothing."""
    return f"namespace {operator_namespace} has no ConfigMap megatron-ledger-*"


def deleted_runs(
    records: Sequence[Records] | str, recipes: Sequence[dict[str, Any]], namespace: str | None
) -> DeletedRuns:
    """The deleted runs of a namespace, or of all; `recipes` are those in it, listed after the records."""
    if isinstance(records, str):
        return DeletedRuns(not_counted=f"{NOT_COUNTED}: {records.rstrip('.')}.")
    sums = total(records, (str(each["metadata"].get("uid")) for each in recipes))
    return DeletedRuns({name: use for name, use in sums.items() if namespace in (None, name)}, None)
