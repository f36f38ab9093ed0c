"""Security contexts of all pods: they comply with the Pod Security level `restricted`."""

from megatron_operator.manifests.metadata import Manifest

USER_ID = 1000
"""UID and GID of the processes in all pods."""

POD_SECURITY: Manifest = {
    "runAsNonRoot": True,
    "runAsUser": USER_ID,
    "runAsGroup": USER_ID,
    "fsGroup": USER_ID,
    # Changing the group of every file of a large checkpoint volume at each start takes minutes.
    "fsGroupChangePolicy": "OnRootMismatch",
    "seccompProfile": {"type": "RuntimeDefault"},
}
CONTAINER_SECURITY: Manifest = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
