"""The Job that checks data which were prepared elsewhere, before accelerators are taken.

`data.blend` are datasets of Megatron, `data.datasetRoot` is a folder of samples to fine-tune on, or of
latents. What the Job of `manifests.prepare` prepares, it checks itself.
"""

import json
from typing import Final

from megatron_contract.bridge_run import BridgeRun
from megatron_contract.environment import DATA_DIR, PROGRESS_PORT
from megatron_contract.preparation import CHECKED_FOLDER

from megatron_operator.catalog import hub
from megatron_operator.catalog.resolved import ResolvedRecipe
from megatron_operator.manifests import cpu_job
from megatron_operator.manifests.cpu_job import Work
from megatron_operator.manifests.metadata import ROLE_CHECK, Manifest, Owner
from megatron_operator.manifests.pod import literal
from megatron_operator.manifests.prepare import FINAL
from megatron_operator.manifests.prepare_resources import check_requests
from megatron_operator.manifests.sample_index import SAMPLE_LENGTH, Built, index_of, line_ends_of, packed_of
from megatron_operator.manifests.storage import Storage
from megatron_operator.planner.dataset_args import (
    bridge_check_arguments,
    bridge_index_arguments,
    dataset_arguments,
)

CONTAINER: Final = "check"
_LATENTS: Final = "latents"


def job(owner: Owner, resolved: ResolvedRecipe, storage: Storage, megatron: list[str]) -> Manifest | None:
    """A batch Job without accelerators, or None for a run whose data are prepared first, random or unchecked.

    `megatron`: the arguments of the run. An edit of those that decide which samples it reads checks again.
    """
    data = resolved.data
    if storage.data is None or data.sources or data.prepare is not None or data.mock_data:
        return None
    if data.check is False:
        return None
    built: Built | None = None
    if data.blend:
        if resolved.engine == "bridge":
            run = BridgeRun.from_arguments(megatron)
            words = bridge_check_arguments(run)
            built = index_of(owner, resolved.cpu_jobs, storage, words, of_bridge=bridge_index_arguments(run))
        else:
            words = dataset_arguments(megatron)
            built = index_of(owner, resolved.cpu_jobs, storage, words)
        arguments = [*_blend_arguments(resolved), *(built.arguments if built else []), "--", *words]
    elif data.dataset_root is not None:
        run = BridgeRun.from_arguments(megatron)
        built = packed_of(owner, storage, run) or line_ends_of(storage, run)
        arguments = [*_root_arguments(resolved, run), *(built.arguments if built else [])]
    else:
        return None
    work = Work(
        role=ROLE_CHECK,
        container=CONTAINER,
        command="megatron-prepare",
        arguments=[literal(word) for word in arguments],
        resources=check_requests(resolved, built.memory if built else 0),
        final=FINAL,
        claims={"data": storage.data} | (built.claims(storage) if built else {}),
        # What is found in a blend is kept there, and samples are packed there without the checkpoints.
        read_only=frozenset() if data.blend or (built and built.folder) else frozenset({"data"}),
        environment={"HOME": "/tmp", **hub.offline_environment(resolved)},
    )
    return cpu_job.job(owner, resolved, work)


def _blend_arguments(resolved: ResolvedRecipe) -> list[str]:
    data = resolved.data
    prefixes = [f"{DATA_DIR}/{part.path}" for part in data.blend or []]
    words = ["--check-blend", json.dumps(prefixes), "--known-dir", f"{DATA_DIR}/{CHECKED_FOLDER}"]
    # Megatron-Bridge sizes the vocabulary by the tokenizer.
    if resolved.model.vocab_size is not None and resolved.engine == "megatron":
        words += ["--vocab-size", str(resolved.model.vocab_size)]
    return [*words, *_most_epochs(resolved), "--progress-port", str(PROGRESS_PORT)]


def _most_epochs(resolved: ResolvedRecipe) -> list[str]:
    """Without a limit of the recipe, data that were prepared elsewhere may be read any number of times."""
    epochs = resolved.data.max_epochs
    return [] if epochs is None else ["--max-epochs", str(epochs)]


def _root_arguments(resolved: ResolvedRecipe, run: BridgeRun) -> list[str]:
    data, training = resolved.data, resolved.training
    words = ["--check-root", f"{DATA_DIR}/{data.dataset_root}", "--progress-port", str(PROGRESS_PORT)]
    if training.eval_iters != 0:
        words.append("--evaluates")
    if resolved.reads_latents:
        return [*words, "--lines", _LATENTS]
    batch, iterations = run.overrides["train.global_batch_size"], run.overrides["train.train_iters"]
    assert isinstance(batch, int)
    assert isinstance(iterations, int)
    words += ["--lines", data.examples or "questionAndAnswer"]
    words += ["--batch", str(batch), "--samples", str(batch * iterations)]
    words += _most_epochs(resolved)
    words += [SAMPLE_LENGTH, str(run.overrides["model.seq_length"])]
    if (folder := run.overrides.get("tokenizer.tokenizer_model")) is not None:
        words += ["--tokenizer-dir", str(folder)]
    if resolved.model.vocab_size is not None:
        words += ["--vocab-size", str(resolved.model.vocab_size)]
    return words
