"""The Secret with the token of a run: only pods that mount it can use the store of the gang."""

from base64 import b64encode

from megatron_contract.environment import GANG_TOKEN_DIR, GANG_TOKEN_FILE

from megatron_operator.manifests.metadata import Manifest, Owner, digest

_VOLUME = "gang-token"
_READABLE_BY_THE_GROUP = 0o440


def secret_name(owner: Owner) -> str:
    """Name of the run's Secret. With the recipe's UID, so that no earlier recipe's has it."""
    return f"{owner.object_name}-gang-{digest(owner.uid, 8)}"


def secret(owner: Owner, token: str) -> Manifest:
    """The Secret. It cannot be changed: pods that start later must have the token of those that run."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": owner.metadata(secret_name(owner)),
        "type": "Opaque",
        "immutable": True,
        "data": {GANG_TOKEN_FILE: b64encode(token.encode()).decode()},
    }


def volume(owner: Owner) -> Manifest:
    """The pod's volume; the pod's group may read it, which is that of the trainer."""
    source = {"secretName": secret_name(owner), "defaultMode": _READABLE_BY_THE_GROUP}
    return {"name": _VOLUME, "secret": source}


def mount() -> Manifest:
    """Where the container has it."""
    return {"name": _VOLUME, "mountPath": GANG_TOKEN_DIR, "readOnly": True}
