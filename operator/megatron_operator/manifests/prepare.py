"""The Job that builds tokenizer, dataset and the index of its samples before the first start."""

import json

from megatron_contract.environment import CHECKPOINT_DIR, DATA_DIR
from megatron_contract.exit_codes import ExitCode

from megatron_operator.api.recipe import DataSpec, PrepareSpec
from megatron_operator.catalog.resolved import ResolvedRecipe
from megatron_operator.catalog.sources import FOLDER, text_name
from megatron_operator.manifests.metadata import ROLE_PREPARE, Manifest, Owner, with_hash
from megatron_operator.manifests.pod import identity, image, literal
from megatron_operator.manifests.security import CONTAINER_SECURITY, POD_SECURITY
from megatron_operator.manifests.storage import Storage
from megatron_operator.planner.dataset_args import dataset_arguments

CONTAINER = "prepare"
DEFAULT_INCLUDE = "**/*.txt"
RETRIES = 2
FINAL: Manifest = {
    "containerName": CONTAINER,
    "operator": "In",
    "values": sorted(int(code) for code in ExitCode if 0 < code < 128),
}
"""Exit codes that a retry cannot fix: the Job fails at once."""
RESOURCES: Manifest = {"requests": {"cpu": "500m", "memory": "1Gi"}}


def _source_arguments(data: DataSpec, prepare: PrepareSpec, tokenizer_dir: str) -> list[str]:
    """Command-line arguments of `megatron-prepare` for `data.sources`."""
    listed = []
    for source, part in zip(data.sources or [], data.blend or [], strict=True):
        entry = source.wire()
        wanted: dict[str, object] = {name: entry[name] for name in ("path", "format")}
        wanted |= {"key": text_name(entry), "output": f"{DATA_DIR}/{part.path}"}
        if source.documents is not None:
            wanted["documents"] = source.documents
        listed.append(wanted)
    return [
        *("--sources", json.dumps(listed), "--output-dir", f"{DATA_DIR}/{FOLDER}"),
        *("--tokenizer-dir", tokenizer_dir, "--pods", str(prepare.workers or 1)),
    ]


def _folder_arguments(prepare: PrepareSpec, tokenizer_dir: str) -> list[str]:
    """Command-line arguments of `megatron-prepare` for `data.prepare.source`."""
    values = ["--source", prepare.source or "", "--include", prepare.include or DEFAULT_INCLUDE]
    values += ["--output-prefix", f"{DATA_DIR}/{prepare.name}", "--tokenizer-dir", tokenizer_dir]
    if prepare.tokenizer_vocab_size is not None:
        values += ["--tokenizer-vocab-size", str(prepare.tokenizer_vocab_size)]
    return values


def arguments(data: DataSpec, prepare: PrepareSpec, tokenizer_dir: str, megatron: list[str]) -> list[str]:
    """Command-line arguments of `megatron-prepare`; `megatron`: those of the run that its data depend on."""
    if data.sources:
        values = _source_arguments(data, prepare, tokenizer_dir)
    else:
        values = _folder_arguments(prepare, tokenizer_dir)
    if prepare.append_eod:
        values.append("--append-eod")
    if megatron:
        values += ["--", *megatron]
    return [literal(value) for value in values]


def _can_mount_checkpoints(storage: Storage, workers: int) -> bool:
    """Whether the Job can write the index beside the checkpoints.

    A new claim for one node is bound where its first pod runs, which may be far from the accelerators. If the
    claim of the data is new too, that happens in any case. Several pods need a claim of several nodes.
    """
    new = {claim["metadata"]["name"]: claim["spec"]["accessModes"] for claim in storage.created}
    one_node = new.get(storage.checkpoint, ["ReadWriteMany"]) != ["ReadWriteMany"]
    if workers > 1:
        return storage.checkpoint in new and not one_node
    return not one_node or storage.data in new


def _division(workers: int) -> Manifest:
    """Fields of a Job whose pods share the work by their index."""
    if workers == 1:
        return {}
    return {"completions": workers, "parallelism": workers, "completionMode": "Indexed"}


def job(owner: Owner, resolved: ResolvedRecipe, storage: Storage, megatron: list[str]) -> Manifest | None:
    """A batch Job without accelerators, or None if there is nothing to prepare.

    `megatron`: the arguments of the run. An edit of those that decide which samples it reads prepares again.
    """
    prepare = resolved.data.prepare or (PrepareSpec() if resolved.data.sources else None)
    if prepare is None or storage.data is None:
        return None
    workers = prepare.workers or 1
    tokenizer = resolved.data.tokenizer.tokenizer_model if resolved.data.tokenizer else None
    index = dataset_arguments(megatron) if _can_mount_checkpoints(storage, workers) else []
    mounts: list[Manifest] = [
        {"name": "data", "mountPath": DATA_DIR},
        {"name": "tmp", "mountPath": "/tmp"},
    ]
    volumes: list[Manifest] = [
        {"name": "data", "persistentVolumeClaim": {"claimName": storage.data}},
        {"name": "tmp", "emptyDir": {}},
    ]
    if index:
        mounts.append({"name": "checkpoints", "mountPath": CHECKPOINT_DIR})
        volumes.append({"name": "checkpoints", "persistentVolumeClaim": {"claimName": storage.checkpoint}})
    spec: Manifest = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "restartPolicy": "Never",
        "securityContext": POD_SECURITY,
        "containers": [
            {
                "name": CONTAINER,
                "image": image(resolved),
                "command": ["megatron-prepare"],
                "args": arguments(resolved.data, prepare, tokenizer or f"{DATA_DIR}/tokenizer", index),
                "env": [{"name": "HOME", "value": "/tmp"}],
                "resources": RESOURCES,
                "securityContext": CONTAINER_SECURITY,
                "terminationMessagePolicy": "FallbackToLogsOnError",
                "volumeMounts": mounts,
            }
        ],
        "volumes": volumes,
    }
    spec |= identity(resolved)
    manifest: Manifest = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": owner.metadata(f"{owner.object_name}-prepare"),
        "spec": {
            "backoffLimit": RETRIES * workers,
            **_division(workers),
            "podFailurePolicy": {"rules": [{"action": "FailJob", "onExitCodes": FINAL}]},
            "template": {"metadata": {"labels": owner.labels(ROLE_PREPARE)}, "spec": spec},
        },
    }
    return with_hash(manifest)
