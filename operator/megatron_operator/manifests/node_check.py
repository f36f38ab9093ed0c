"""The Job that checks the devices of a node that the operator has cordoned."""

from typing import Any, Final

from megatron_contract.environment import CONTAINER_NAME, ENV_NODE_NAME, ENV_PLATFORM

from megatron_operator.api.labels import (
    FIELD_MANAGER,
    LABEL_CORDONED_AT,
    LABEL_MANAGED_BY,
    LABEL_NODE_CHECK,
)
from megatron_operator.api.platform import AcceleratorProfile, PlatformConfig
from megatron_operator.manifests import overlay
from megatron_operator.manifests.metadata import Manifest, digest
from megatron_operator.manifests.security import CONTAINER_SECURITY, POD_SECURITY

DEADLINE: Final = 600
"""Seconds until the Job fails, its time to be scheduled and to load its image included."""
KEPT: Final = 3600
"""Seconds after which Kubernetes deletes an ended Job that the operator did not."""
CORDON_TAINT: Final = "node.kubernetes.io/unschedulable"


def name(node: str) -> str:
    """Name of the Job: a node has at most one."""
    return f"node-check-{digest(node)}"


def job(
    node: dict[str, Any], namespace: str, platform: PlatformConfig, profile: AcceleratorProfile
) -> Manifest | None:
    """The Job, in the operator's own namespace; None where the platform has no image for it.

    The scheduler places its pod, so that it waits for devices that other pods still use. It requests all
    devices of the node, by the profile's claims where it has no extended resource, and runs the platform's
    image, never one of a recipe.
    """
    image, metadata = profile.image or platform.image, node["metadata"]
    if image is None:
        return None
    label = {LABEL_MANAGED_BY: FIELD_MANAGER, LABEL_NODE_CHECK: digest(metadata["name"])}
    # Without blockOwnerDeletion, which would need a right on nodes/finalizers.
    owner = {"apiVersion": "v1", "kind": "Node", "name": metadata["name"], "uid": metadata["uid"]}
    template: Manifest = {"metadata": {"labels": label}, "spec": _pod(metadata["name"], image, profile)}
    if platform.image_pull_secrets:
        template["spec"]["imagePullSecrets"] = [{"name": each} for each in platform.image_pull_secrets]
    # What belongs to the fabric is left out: the check uses none.
    overlay.apply(template, profile.pod_template, whole_node=False)
    if profile.resource_name is None:  # Its devices are among the claims.
        for claim in profile.pod_template.resource_claims:
            overlay.add_claim(template, claim.wire())
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": name(metadata["name"]),
            "namespace": namespace,
            "labels": label,
            "annotations": {LABEL_CORDONED_AT: metadata["labels"][LABEL_CORDONED_AT]},
            "ownerReferences": [owner],
        },
        "spec": {
            "backoffLimit": 0,
            "activeDeadlineSeconds": DEADLINE,
            "ttlSecondsAfterFinished": KEPT,
            "template": template,
        },
    }


def _pod(node: str, image: str, profile: AcceleratorProfile) -> Manifest:
    devices = {} if profile.resource_name is None else {profile.resource_name: str(profile.per_node)}
    fits = {key: value for key, value in profile.resources.wire().items() if value is not None}
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    here = {"nodeSelectorTerms": [{"matchFields": [field]}]}
    values = {"HOME": "/tmp"} | profile.env | {ENV_PLATFORM: profile.platform}
    return {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "restartPolicy": "Never",
        "securityContext": POD_SECURITY,
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": here}},
        "tolerations": [
            {"key": CORDON_TAINT, "operator": "Exists", "effect": "NoSchedule"},
            *(toleration.wire() for toleration in profile.tolerations),
        ],
        "containers": [
            {
                "name": CONTAINER_NAME,
                "image": image,
                "command": ["megatron-check-node", f"--devices={profile.per_node}"],
                "env": [
                    *({"name": key, "value": value} for key, value in values.items()),
                    {"name": ENV_NODE_NAME, "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
                ],
                "resources": {"requests": fits | devices} | ({"limits": devices} if devices else {}),
                "securityContext": CONTAINER_SECURITY,
                "terminationMessagePolicy": "File",
                "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
            }
        ],
        "volumes": [{"name": "tmp", "emptyDir": {}}],
    }
