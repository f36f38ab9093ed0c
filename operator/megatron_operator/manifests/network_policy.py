"""The NetworkPolicy of a run: who may connect to its pods. What they connect to is left open."""

from megatron_contract.environment import PROGRESS_PORT

from megatron_operator.api.labels import FIELD_MANAGER, LABEL_RECIPE
from megatron_operator.api.platform import NetworkPolicies
from megatron_operator.manifests.metadata import Manifest, Owner, with_hash

_LABEL_NAMESPACE = "kubernetes.io/metadata.name"
_LABEL_APP = "app.kubernetes.io/name"


def network_policy(owner: Owner, options: NetworkPolicies) -> Manifest | None:
    """The policy, or None where the platform wants none.

    Egress has no rule: volumes, object stores and registries of datasets differ between clusters.
    """
    if not options.enabled:
        return None
    run = {"matchLabels": {LABEL_RECIPE: owner.name}}
    operator = _namespaces([options.operator_namespace]) | {
        "podSelector": {"matchLabels": {_LABEL_APP: FIELD_MANAGER}}
    }
    readers = [operator]
    if options.metrics_from:
        readers.append(_namespaces(options.metrics_from))
    policy: Manifest = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": owner.metadata(f"{owner.object_name}-pods"),
        "spec": {
            "podSelector": run,
            "policyTypes": ["Ingress"],
            "ingress": [
                # Ranks open ports of their choice to each other.
                {"from": [{"podSelector": run}]},
                {"from": readers, "ports": [{"protocol": "TCP", "port": PROGRESS_PORT}]},
            ],
        },
    }
    return with_hash(policy)


def _namespaces(names: list[str]) -> Manifest:
    expression = {"key": _LABEL_NAMESPACE, "operator": "In", "values": names}
    return {"namespaceSelector": {"matchExpressions": [expression]}}
