"""The Jobs that import weights before a run and export its own after it."""

from collections.abc import Mapping
from fractions import Fraction
from pathlib import PurePosixPath
from typing import Final

from megatron_contract.environment import (
    CHECKPOINT_DIR,
    DATA_DIR,
    DEFAULT_TERMINATION_LOG,
    ENV_PROGRESS_PORT,
    ENV_SECRET_VARIABLES,
    ENV_TERMINATION_LOG,
    PROGRESS_PORT,
)

from megatron_operator.api import quantity
from megatron_operator.api.errors import FieldError
from megatron_operator.api.fine_tuning import HuggingFaceSource, plain_path
from megatron_operator.api.model import ModelSpec
from megatron_operator.api.platform import Hub
from megatron_operator.catalog.resolved import ResolvedRecipe
from megatron_operator.manifests import cpu_job
from megatron_operator.manifests.cpu_job import Work
from megatron_operator.manifests.metadata import (
    ROLE_EXPORT,
    ROLE_EXPORT_BEST,
    ROLE_IMPORT,
    Manifest,
    Owner,
    digest,
)
from megatron_operator.manifests.pod import literal
from megatron_operator.manifests.storage import Storage
from megatron_operator.planner.megatron_args import model_arguments

AUDIT_FILE: Final = "conversion-audit.json"
"""Written beside the weights, with the checksum of every tensor."""
CONTAINER: Final = "convert"
REFUSED: Final = 2
"""Exit code of `megatron-convert` for input that cannot be converted: a retry cannot fix it."""
BYTES_PER_PARAMETER: Final = 2
COPIES: Final = 5
"""Copies of a tensor that a conversion holds at most: as read, as joined, transposed or split, as written."""
COPIES_MERGED: Final = 12
"""The same where adapters are added to it: the tensor, their product and the sum are in float32."""
LIBRARIES: Final = 3 << 29
"""Bytes of the process without a tensor: 0.9 GiB of torch, Megatron-Bridge and transformers, and room."""
CPU: Final = "1"
TOKEN: Final = "HF_TOKEN"
ENDPOINT: Final = "HF_ENDPOINT"


def import_job(owner: Owner, resolved: ResolvedRecipe, storage: Storage) -> Manifest | None:
    """The Job that imports the weights of `init.from.huggingFace`; None for a run without them.

    It alone asks a hub, where the recipe names a model on one, and it alone has the token.
    """
    source = resolved.init.source
    if source is None or source.hugging_face is None:
        return None
    model = source.hugging_face
    words = ["import", "--from", model.folder, "--to", source.checkpoint, "--reuse"]
    words += _hub_arguments(model) + _model(resolved)
    claims = _claims(storage, model.folder)
    if model.name is None:
        return _job(owner, resolved, ROLE_IMPORT, words, claims)
    token = model.secret_key_ref or resolved.hub.secret_key_ref
    secret = () if token is None else ({"name": TOKEN, "valueFrom": {"secretKeyRef": token.wire()}},)
    environment = _hub_environment(resolved.hub) | ({ENV_SECRET_VARIABLES: TOKEN} if secret else {})
    return _job(owner, resolved, ROLE_IMPORT, words, claims, environment, secret)


def _hub_arguments(model: HuggingFaceSource) -> list[str]:
    if model.name is None:
        return []
    return ["--hub", model.name, *(["--revision", model.revision] if model.revision else [])]


def _hub_environment(hub: Hub) -> dict[str, str]:
    return {} if hub.endpoint is None else {ENDPOINT: hub.endpoint}


def folder_of_run(name: str) -> str:
    """Where the recipe `name` saves its checkpoints."""
    return f"{CHECKPOINT_DIR}/{name}"


def export_job(owner: Owner, resolved: ResolvedRecipe, storage: Storage) -> Manifest | None:
    """The Job that exports the run's newest checkpoint; None unless `export.when` has `end`."""
    target = resolved.export.folder("end") if resolved.export else None
    return None if target is None else _export(owner, resolved, storage, ROLE_EXPORT, target, [])


def export_best_job(owner: Owner, resolved: ResolvedRecipe, storage: Storage) -> Manifest | None:
    """The Job that exports the checkpoint with the lowest validation loss; None without `best` in `when`.

    The converter chooses it: the volume has the last evaluation, which the status may have missed. Where it
    is the newest one too, it links to what `export_job` has written.
    """
    target = resolved.export.folder("best") if resolved.export else None
    if resolved.export is None or target is None:
        return None
    end = resolved.export.folder("end")
    words = ["--iteration", "best", *([] if end is None else ["--link", end])]
    return _export(owner, resolved, storage, ROLE_EXPORT_BEST, target, words)


def _export(
    owner: Owner,
    resolved: ResolvedRecipe,
    storage: Storage,
    role: str,
    target: str,
    checkpoint: list[str],
) -> Manifest:
    run, base = folder_of_run(owner.name), export_base(resolved)
    words = ["export", "--from", run, "--to", target, "--reuse", "--parents", *checkpoint]
    words += [] if base is None else ["--base", base]
    words += _model(resolved)
    folders = [target, run, base or run]
    if resolved.peft is not None:
        # The weights that adapters were trained on may be on either claim.
        folders.append(f"{DATA_DIR}/weights")
    return _job(owner, resolved, role, words, _claims(storage, *folders))


def model_hash(resolved: ResolvedRecipe) -> str | None:
    """Hash of the arguments that an import compares with config.json; None where it compares none."""
    words = _model(resolved)
    return digest(words) if words else None


def _model(resolved: ResolvedRecipe) -> list[str]:
    """The arguments of the model that the own loop builds; Bridge builds what config.json describes."""
    return ["--", *model_arguments(resolved)] if resolved.engine == "megatron" else []


def export_base(resolved: ResolvedRecipe) -> str | None:
    """The folder whose configuration and tokenizer an export has."""
    own = resolved.export.hugging_face.base if resolved.export else None
    base = resolved.init.base_of_export or own
    return None if base is None else plain_path(base)


def image_errors(resolved: ResolvedRecipe) -> list[FieldError]:
    """Errors of conversions for which there is no image."""
    source = resolved.init.source
    asked = {
        "spec.init.from.huggingFace": source and source.hugging_face,
        "spec.export": resolved.export,
    }
    message = "needs an image with Megatron-Bridge for its Job, and platform.bridgeImage is not set"
    fix = "have platform.bridgeImage set, or set spec.image to such an image"
    missing = resolved.conversion_image is None
    return [FieldError(field, message, fix) for field, value in asked.items() if value and missing]


def request(resolved: ResolvedRecipe) -> Manifest:
    """The container's `resources`."""
    merges = resolved.export is not None and bool(resolved.export.merge)
    needed = memory_needed(resolved.model, merges=merges, joins_experts=resolved.joins_experts)
    return {"requests": {"cpu": CPU, "memory": quantity.memory(Fraction(needed))}}


def memory_needed(model: ModelSpec, *, merges: bool, joins_experts: bool) -> int:
    """Bytes that a conversion needs: copies of the model's largest tensor, not the model.

    `make bench-weights` measures it. `joins_experts`: files may have one tensor for a matrix of all experts.
    """
    hidden = model.hidden_size or 0
    matrix = 2 * (model.ffn_hidden_size or 4 * hidden) * hidden
    experts = 2 * (model.num_experts or 0) * (model.moe_ffn_hidden_size or 0) * hidden if joins_experts else 0
    held = COPIES * max((model.vocab_size or 0) * hidden, matrix, experts)
    if merges:
        held = max(held, COPIES_MERGED * matrix)
    return LIBRARIES + BYTES_PER_PARAMETER * held


def _job(
    owner: Owner,
    resolved: ResolvedRecipe,
    role: str,
    words: list[str],
    claims: dict[str, str],
    of_hub: Mapping[str, str] | None = None,
    secret: tuple[Manifest, ...] = (),
) -> Manifest:
    work = Work(
        role=role,
        container=CONTAINER,
        command="megatron-convert",
        arguments=[literal(word) for word in words],
        resources=request(resolved),
        final=[REFUSED],
        claims=claims,
        image=resolved.conversion_image,
        environment={
            "HOME": "/tmp",
            **({"HF_HUB_OFFLINE": "1"} if of_hub is None else of_hub),
            ENV_TERMINATION_LOG: DEFAULT_TERMINATION_LOG,
            # No argument: the converter of an image that is older than the operator would refuse it.
            ENV_PROGRESS_PORT: str(PROGRESS_PORT),
        },
        secret_environment=secret,
    )
    return cpu_job.job(owner, resolved, work)


def _claims(storage: Storage, *folders: str) -> dict[str, str]:
    """The claims that hold the folders."""
    known = {"data": (DATA_DIR, storage.data), "checkpoints": (CHECKPOINT_DIR, storage.checkpoint)}
    return {
        name: claim
        for name, (path, claim) in known.items()
        if claim is not None and any(PurePosixPath(path) in PurePosixPath(each).parents for each in folders)
    }
