"""PersistentVolumeClaims and volumes: checkpoints, data, /dev/shm, /tmp."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from megatron_contract.environment import CHECKPOINT_DIR, DATA_DIR, LOCAL_CHECKPOINT_DIR

from megatron_operator.api.errors import FieldError, InvalidRecipeError, shown
from megatron_operator.api.recipe import VolumeSpec
from megatron_operator.catalog.resolved import ResolvedRecipe
from megatron_operator.manifests.metadata import Manifest, Owner, with_hash


@dataclass(frozen=True, slots=True)
class Storage:
    """The claims that a run mounts."""

    checkpoint: str
    data: str | None
    """None for mock data, which needs no volume."""
    created: tuple[Manifest, ...]
    """Claims that the operator creates."""
    existing: dict[str, Manifest]
    """Name of such a claim -> what it is to be where it exists: without the platform's size and class."""
    expected: tuple[str, ...]
    """Claims that the user names and that must exist."""
    local_limit: str | None
    """Size limit of the local checkpoint tier on the node's disk; None without one."""

    def volumes(self, shm_size: str) -> list[Manifest]:
        """`volumes` of the pod; `shm_size` is a quantity."""
        volumes: list[Manifest] = [
            {"name": "checkpoints", "persistentVolumeClaim": {"claimName": self.checkpoint}},
            # The default of 64 MB is too small for NCCL and data loaders.
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": shm_size}},
            {"name": "tmp", "emptyDir": {}},
        ]
        if self.data:
            volumes.append({"name": "data", "persistentVolumeClaim": {"claimName": self.data}})
        if self.local_limit:
            volumes.append({"name": "local-checkpoints", "emptyDir": {"sizeLimit": self.local_limit}})
        return volumes

    def mounts(self) -> list[Manifest]:
        """`volumeMounts` of the trainer container."""
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
    """The claims of a run. Raises InvalidRecipeError if a volume has neither claimName nor size."""
    created: list[tuple[Manifest, Manifest]] = []
    expected: list[str] = []
    checkpoint = resolved.checkpoint
    volume = checkpoint.volume or VolumeSpec()
    owned = not checkpoint.retain_on_delete
    checkpoint_claim = _claim(owner, resolved, "checkpoint", volume, nodes, created, expected, owned=owned)
    data_claim = None
    if resolved.data.volume is not None or resolved.data.prepare is not None:
        workers = (resolved.data.prepare and resolved.data.prepare.workers) or 1
        data = resolved.data.volume or VolumeSpec()
        if data.claim_name is None and (errors := list(_new_volume_errors(resolved))):
            raise InvalidRecipeError(errors)
        data_claim = _claim(owner, resolved, "data", data, max(nodes, workers), created, expected, owned=True)
    local = checkpoint.local.size_limit if checkpoint.local else None
    claims = tuple(claim for claim, _ in created)
    existing = {claim["metadata"]["name"]: named for claim, named in created}
    return Storage(checkpoint_claim, data_claim, claims, existing, tuple(expected), local)


def _new_volume_errors(resolved: ResolvedRecipe) -> Iterator[FieldError]:
    """Errors of a new data volume from which something is read that nothing writes."""
    data, source, empty = resolved.data, resolved.init.source, "requests a new, empty volume"
    # Sources need no data.prepare: objects are prepared with its defaults.
    if data.prepare is None and not data.sources:
        fix = "set claimName to the claim that has the datasets"
        yield FieldError("spec.data.volume", f"{empty}, but nothing fills it", fix)
        return
    read = {f"data.sources[{number}].path": each.path for number, each in enumerate(data.sources or ())}
    read["data.prepare.source"] = (data.prepare and data.prepare.source) or ""
    model = source.hugging_face if source else None
    # The import fills the folder of a model with a name.
    read["init.from.huggingFace.path"] = model.path or "" if model and model.name is None else ""
    read["init.from.megatron.path"] = source.megatron.path if source and source.megatron else ""
    read["init.modelFolder"] = resolved.init.model_folder or ""
    tokenizer = (data.tokenizer and data.tokenizer.tokenizer_model) or ""
    is_trained = data.prepare is not None and data.prepare.tokenizer_vocab_size is not None
    # That of the model is in the folder that is named above, or that the import fills.
    if not is_trained and tokenizer not in (resolved.init.model_folder, model and model.folder):
        read["data.tokenizer.tokenizerModel"] = tokenizer
    for field, path in read.items():
        if path.startswith(f"{DATA_DIR}/"):
            message = f"{empty}, from which {field} {shown(path)} is read"
            yield FieldError("spec.data.volume", message, "set claimName to the claim that has it")


def _claim(
    owner: Owner,
    resolved: ResolvedRecipe,
    section: Literal["checkpoint", "data"],
    volume: VolumeSpec,
    nodes: int,
    created: list[tuple[Manifest, Manifest]],
    expected: list[str],
    *,
    owned: bool,
) -> str:
    """Name of the claim of a section's volume, which is added to `created` or `expected`."""
    if volume.claim_name is not None:
        expected.append(volume.claim_name)
        return volume.claim_name
    field = f"{section}.volume"
    if volume.size is None:
        raise InvalidRecipeError(
            [FieldError(f"spec.{field}", "has neither claimName nor size", "set claimName or size")]
        )
    name = f"{owner.object_name}-{'checkpoints' if section == 'checkpoint' else section}"
    modes = [volume.access_mode or ("ReadWriteMany" if nodes > 1 else "ReadWriteOnce")]
    settings: Manifest = {"size": {"resources": {"requests": {"storage": volume.size}}}}
    if volume.storage_class_name is not None:
        settings["storageClassName"] = {"storageClassName": volume.storage_class_name}

    def claim(leaves: Iterable[str]) -> Manifest:
        spec: Manifest = {"accessModes": modes}
        for leaf in leaves:
            spec |= settings[leaf]
        return with_hash(
            {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "metadata": owner.metadata(name, owned=owned),
                "spec": spec,
            }
        )

    by_recipe = resolved.is_set_by_user(field)
    named = [leaf for leaf in settings if by_recipe and resolved.is_set_by_user(f"{field}.{leaf}")]
    created.append((claim(settings), claim(named)))
    return name
