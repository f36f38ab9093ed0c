"""The Job that builds tokenizer and dataset from text before the first start."""

from megatron_contract.environment import DATA_DIR
from megatron_contract.exit_codes import ExitCode

from megatron_operator.api.recipe import PrepareSpec
from megatron_operator.catalog.resolved import ResolvedRecipe
from megatron_operator.manifests.metadata import ROLE_PREPARE, Manifest, Owner, with_hash
from megatron_operator.manifests.pod import identity, image, literal
from megatron_operator.manifests.security import CONTAINER_SECURITY, POD_SECURITY
from megatron_operator.manifests.storage import Storage

CONTAINER = "prepare"
RETRIES = 2
FINAL: Manifest = {
    "containerName": CONTAINER,
    "operator": "In",
    "values": sorted(int(code) for code in ExitCode if 0 < code < 128),
}
"""Exit codes that a retry cannot fix: the Job fails at once."""
RESOURCES: Manifest = {"requests": {"cpu": "500m", "memory": "1Gi"}}


def arguments(prepare: PrepareSpec, tokenizer_dir: str) -> list[str]:
    """Command-line arguments of `megatron-prepare`."""
    values = [
        "--source",
        prepare.source,
        "--include",
        prepare.include,
        "--output-prefix",
        f"{DATA_DIR}/{prepare.name}",
        "--tokenizer-dir",
        tokenizer_dir,
        "--tokenizer-vocab-size",
        str(prepare.tokenizer_vocab_size),
    ]
    words = [literal(value) for value in values]
    return [*words, "--append-eod"] if prepare.append_eod else words


def job(owner: Owner, resolved: ResolvedRecipe, storage: Storage) -> Manifest | None:
    """A batch Job without accelerators, or None if there is nothing to prepare."""
    prepare = resolved.data.prepare
    if prepare is None or storage.data is None:
        return None
    tokenizer = resolved.data.tokenizer.tokenizer_model if resolved.data.tokenizer else None
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
                "args": arguments(prepare, tokenizer or f"{DATA_DIR}/tokenizer"),
                "env": [{"name": "HOME", "value": "/tmp"}],
                "resources": RESOURCES,
                "securityContext": CONTAINER_SECURITY,
                "terminationMessagePolicy": "FallbackToLogsOnError",
                "volumeMounts": [
                    {"name": "data", "mountPath": DATA_DIR},
                    {"name": "tmp", "mountPath": "/tmp"},
                ],
            }
        ],
        "volumes": [
            {"name": "data", "persistentVolumeClaim": {"claimName": storage.data}},
            {"name": "tmp", "emptyDir": {}},
        ],
    }
    spec |= identity(resolved)
    manifest: Manifest = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": owner.metadata(f"{owner.object_name}-prepare"),
        "spec": {
            "backoffLimit": RETRIES,
            "podFailurePolicy": {"rules": [{"action": "FailJob", "onExitCodes": FINAL}]},
            "template": {"metadata": {"labels": owner.labels(ROLE_PREPARE)}, "spec": spec},
        },
    }
    return with_hash(manifest)
