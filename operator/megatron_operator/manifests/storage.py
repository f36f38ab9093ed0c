"""Claims and volumes: checkpoints, data, /dev/shm, /tmp."""

from dataclasses import dataclass

from megatron_contract.environment import CHECKPOINT_DIR, DATA_DIR, LOCAL_CHECKPOINT_DIR

from megatron_operator.api.errors import FieldError, InvalidRecipeError
from megatron_operator.api.recipe import VolumeSpec
from megatron_operator.catalog.resolved import ResolvedRecipe
from megatron_operator.manifests.metadata import Manifest, Owner, with_hash


@dataclass(frozen=True, slots=True)
class Storage:
    """Which claims a run mounts."""

    checkpoint: str
    data: str | None
    """None for mock data: nothing is mounted."""
    made: tuple[Manifest, ...]
    """Claims that the operator makes."""
    expected: tuple[str, ...]
    """Claims of the user's that must exist."""
    local_limit: str | None
    """Size of the tier on the node's disk; None: there is none."""

    def volumes(self, shm_size: str) -> list[Manifest]:
        volumes: list[Manifest] = [
            {"name": "checkpoints", "persistentVolumeClaim": {"claimName": self.checkpoint}},
            # Docker's and containerd's 64 MB are too few for NCCL and data loaders.
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": shm_size}},
            {"name": "tmp", "emptyDir": {}},
        ]
        if self.data:
            volumes.append({"name": "data", "persistentVolumeClaim": {"claimName": self.data}})
        if self.local_limit:
            volumes.append({"name": "local-checkpoints", "emptyDir": {"sizeLimit": self.local_limit}})
        return volumes

    def mounts(self) -> list[Manifest]:
        mounts: list[Manifest] = [
            {"name": "checkpoints", "mountPath": CHECKPOINT_DIR},
            {"name": "shm", "mountPath": "/dev/shm"},
            {"name": "tmp", "mountPath": "/tmp"},
        ]
        if self.data:
            mounts.append({"name": "data", "mountPath": DATA_DIR, "readOnly": True})
        if self.local_limit:
            mounts.append({"name": "local-checkpoints", "mountPath": LOCAL_CHECKPOINT_DIR})
        return mounts


def storage(owner: Owner, resolved: ResolvedRecipe, nodes: int) -> Storage:
    """The claims of a run. Raises InvalidRecipeError where a volume is needed and neither named nor sized."""
    made: list[Manifest] = []
    expected: list[str] = []
    checkpoint = resolved.checkpoint
    volume = checkpoint.volume or VolumeSpec()
    checkpoint_claim = _claim(
        owner, "checkpoints", volume, nodes, made, expected, owned=not checkpoint.retain_on_delete
    )
    data_claim = None
    if resolved.data.volume is not None or resolved.data.prepare is not None:
        data = resolved.data.volume or VolumeSpec()
        if data.claim_name is None and resolved.data.prepare is None:
            raise InvalidRecipeError(
                [
                    FieldError(
                        "spec.data.volume",
                        "asks for a new, empty volume and nothing is said about how to fill it",
                        "name an existing claim in claimName, or say data.prepare",
                    )
                ]
            )
        data_claim = _claim(owner, "data", data, nodes, made, expected, owned=True)
    local = checkpoint.local.size_limit if checkpoint.local else None
    return Storage(checkpoint_claim, data_claim, tuple(made), tuple(expected), local)


def _claim(
    owner: Owner,
    purpose: str,
    volume: VolumeSpec,
    nodes: int,
    made: list[Manifest],
    expected: list[str],
    *,
    owned: bool,
) -> str:
    if volume.claim_name is not None:
        expected.append(volume.claim_name)
        return volume.claim_name
    field = "spec.checkpoint.volume" if purpose == "checkpoints" else "spec.data.volume"
    if volume.size is None:
        raise InvalidRecipeError([FieldError(field, "names no claim and no size", "set claimName or size")])
    name = f"{owner.object_name}-{purpose}"
    spec: Manifest = {
        "accessModes": [volume.access_mode or ("ReadWriteMany" if nodes > 1 else "ReadWriteOnce")],
        "resources": {"requests": {"storage": volume.size}},
    }
    if volume.storage_class_name is not None:
        spec["storageClassName"] = volume.storage_class_name
    made.append(
        with_hash(
            {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "metadata": owner.metadata(name, owned=owned),
                "spec": spec,
            }
        )
    )
    return name
