"""The Job that builds tokenizer, dataset and the index of its samples before the first start."""

import json

from megatron_contract.bridge_run import BridgeRun
from megatron_contract.environment import DATA_DIR, ENV_RUN_ID, ENV_SECRET_VARIABLES, PROGRESS_PORT
from megatron_contract.exit_codes import ExitCode

from megatron_operator.api.recipe import DataSpec, ObjectStorageSpec, PrepareSpec
from megatron_operator.catalog.chats import is_text
from megatron_operator.catalog.data import DEFAULT_INCLUDE
from megatron_operator.catalog.resolved import ResolvedRecipe
from megatron_operator.catalog.sources import FOLDER, text_name
from megatron_operator.manifests import cpu_job
from megatron_operator.manifests.cpu_job import Work
from megatron_operator.manifests.metadata import ROLE_PREPARE, Manifest, Owner
from megatron_operator.manifests.pod import literal
from megatron_operator.manifests.prepare_resources import requests
from megatron_operator.manifests.sample_index import Built, index_of, packed_of
from megatron_operator.manifests.storage import Storage
from megatron_operator.planner.dataset_args import (
    bridge_dataset_arguments,
    bridge_index_arguments,
    dataset_arguments,
)

CONTAINER = "prepare"
FINAL = sorted(int(code) for code in ExitCode if 0 < code < 128)
"""Exit codes that a retry cannot fix: the Job fails at once."""
_CREDENTIALS = {"AWS_ACCESS_KEY_ID": False, "AWS_SECRET_ACCESS_KEY": False, "AWS_SESSION_TOKEN": True}
"""Keys of the Secret with the credentials of an object store, and whether they may be missing."""
_ALL_TO_TRAIN_ON = "100,0"
"""The split of sources beside others that are for validation alone."""


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
        *("--progress-port", str(PROGRESS_PORT)),
        *_store_arguments(prepare),
    ]


def _store_arguments(prepare: PrepareSpec) -> list[str]:
    storage = prepare.object_storage or ObjectStorageSpec()
    pairs = (("--endpoint-url", storage.endpoint_url), ("--region", storage.region))
    return [word for name, value in pairs if value is not None for word in (name, value)]


def _chat_arguments(
    resolved: ResolvedRecipe, prepare: PrepareSpec, run: BridgeRun, packed: Built | None
) -> list[str]:
    """Command-line arguments of `megatron-prepare` for `data.sources` of a recipe that fine-tunes."""
    kind = f"--{resolved.media or 'chats'}"
    data = resolved.data
    listed = []
    for source in data.sources or []:
        entry: dict[str, object] = {"path": source.path}
        if is_text(wire := source.wire()):
            entry |= {"format": source.format, "key": text_name(wire)}
        entry |= {"documents": source.documents} if source.documents is not None else {}
        entry |= {"weight": source.weight} if source.weight != 1 else {}
        listed.append(entry | ({"validation": True} if source.validation else {}))
    batch = run.overrides["train.global_batch_size"]
    iterations = run.overrides["train.train_iters"]
    assert isinstance(batch, int)
    assert isinstance(iterations, int)
    values = [
        *(kind, json.dumps(listed), "--output", f"{DATA_DIR}/{data.dataset_root}"),
        *("--output-dir", f"{DATA_DIR}/{FOLDER}"),
        *("--tokenizer-dir", str(run.overrides["tokenizer.tokenizer_model"])),
        *("--seq-length", str(run.overrides["model.seq_length"]), "--batch", str(batch)),
        *("--samples", str(batch * iterations), "--max-epochs", str(data.max_epochs or 1)),
        *("--split", data.split or _ALL_TO_TRAIN_ON, "--pods", str(prepare.workers or 1)),
        *("--progress-port", str(PROGRESS_PORT)),
        *_store_arguments(prepare),
    ]
    if run.overrides["dataset.do_validation"]:
        values.append("--evaluates")
    if resolved.model.vocab_size is not None:
        values += ["--vocab-size", str(resolved.model.vocab_size)]
    values += packed.arguments if packed else []
    return [literal(value) for value in values]


def _folder_arguments(prepare: PrepareSpec, tokenizer_dir: str) -> list[str]:
    """Command-line arguments of `megatron-prepare` for `data.prepare.source`."""
    values = ["--source", prepare.source or "", "--include", prepare.include or DEFAULT_INCLUDE]
    values += ["--output-prefix", f"{DATA_DIR}/{prepare.name}", "--tokenizer-dir", tokenizer_dir]
    if prepare.tokenizer_vocab_size is not None:
        values += ["--tokenizer-vocab-size", str(prepare.tokenizer_vocab_size)]
    return values


def arguments(
    resolved: ResolvedRecipe,
    prepare: PrepareSpec,
    tokenizer_dir: str,
    megatron: list[str],
    index: Built | None,
) -> list[str]:
    """Command-line arguments of `megatron-prepare`; `megatron`: those of the run that its data depend on.

    With `index`, the index of the run's samples is built. Sources are checked against the run in any case.
    """
    data = resolved.data
    vocabulary = []
    # Megatron-Bridge sizes the vocabulary by the tokenizer.
    if resolved.model.vocab_size is not None and resolved.engine == "megatron":
        vocabulary = ["--vocab-size", str(resolved.model.vocab_size)]
    if data.sources:
        values = _source_arguments(data, prepare, tokenizer_dir) + vocabulary
        values += ["--max-epochs", str(data.max_epochs or 1)]
        values += index.arguments if index else []
    else:
        values = _folder_arguments(prepare, tokenizer_dir) + vocabulary
        # Megatron's arguments alone have it built beside the checkpoints.
        values += index.arguments if index and index.folder else []
    if prepare.append_eod:
        values.append("--append-eod")
    if megatron and (index or data.sources):
        values += ["--", *megatron]
    return [literal(value) for value in values]


def _credentials(prepare: PrepareSpec) -> tuple[Manifest, ...]:
    """Variables of the preparing pods, and of no others, with the credentials of the object store."""
    name = None if prepare.object_storage is None else prepare.object_storage.secret_name
    if name is None:
        return ()
    return tuple(
        {
            "name": key,
            "valueFrom": {
                "secretKeyRef": {"name": name, "key": key} | ({"optional": True} if optional else {})
            },
        }
        for key, optional in _CREDENTIALS.items()
    )


def job(owner: Owner, resolved: ResolvedRecipe, storage: Storage, megatron: list[str]) -> Manifest | None:
    """A batch Job without accelerators, or None if there is nothing to prepare.

    `megatron`: the arguments of the run. An edit of those that decide which samples it reads prepares again.
    """
    prepare = resolved.data.prepare or (PrepareSpec() if resolved.data.sources else None)
    if prepare is None or storage.data is None:
        return None
    workers = prepare.workers or 1
    run = BridgeRun.from_arguments(megatron) if resolved.engine == "bridge" else None
    built: Built | None
    if resolved.fine_tunes:
        assert run is not None, "Megatron-Bridge fine-tunes"
        built = packed_of(owner, storage, run, workers)
        own = _chat_arguments(resolved, prepare, run, built)
    else:
        words = bridge_dataset_arguments(run) if run is not None else dataset_arguments(megatron)
        of_bridge = bridge_index_arguments(run) if run is not None else ()
        built = index_of(owner, resolved.cpu_jobs, storage, words, workers, of_bridge) if words else None
        tokenizer = resolved.data.tokenizer.tokenizer_model if resolved.data.tokenizer else None
        own = arguments(resolved, prepare, tokenizer or f"{DATA_DIR}/tokenizer", words, built)
    claims = {"data": storage.data} | (built.claims(storage) if built else {})
    credentials = _credentials(prepare)
    # Workers of recipes with the same sources differ in it; a file without a cluster has none.
    environment = {"HOME": "/tmp", **({ENV_RUN_ID: owner.uid} if owner.uid else {})}
    if credentials:
        environment[ENV_SECRET_VARIABLES] = " ".join(_CREDENTIALS)
    work = Work(
        role=ROLE_PREPARE,
        container=CONTAINER,
        command="megatron-prepare",
        arguments=own,
        resources=requests(resolved, prepare, built.memory if built else 0),
        final=FINAL,
        claims=claims,
        environment=environment,
        secret_environment=credentials,
        pods=workers,
    )
    return cpu_job.job(owner, resolved, work)
