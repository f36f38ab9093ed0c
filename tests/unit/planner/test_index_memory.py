"""An index that is too large for the Job before the run, and so is left to rank 0, is named."""

from typing import Any

import pytest
from megatron_operator.api.platform import CpuJobs
from megatron_operator.catalog.resolved import ResolvedRecipe
from megatron_operator.planner import plan

DATA: dict[str, Any] = {
    "volume": {"claimName": "corpus"},
    "tokenizer": {"tokenizerType": "HuggingFaceTokenizer", "tokenizerModel": "/data/tokenizer"},
    "blend": [{"path": "web_text_document"}],
}


def notes(resolved: ResolvedRecipe) -> list[str]:
    return [note for note in plan(resolved).notes if note.startswith("the index of")]


def with_jobs(resolved: ResolvedRecipe, most: str) -> ResolvedRecipe:
    jobs = CpuJobs.model_validate({"maxIndexMemory": most})
    return resolved.model_copy(update={"cpu_jobs": jobs})


@pytest.mark.parametrize("recipe", ["mistral-7b", "llama3.2-1b", "deepseek-v3"])
def test_the_index_of_a_recipe_at_its_length_in_the_catalog_is_too_large_for_the_job(
    recipe: str, resolve: Any
) -> None:
    count = 1024 if recipe == "deepseek-v3" else 64
    resolved = resolve(recipe, count, data=DATA)
    [note] = notes(resolved)
    samples = resolved.training.train_samples or (
        resolved.training.train_iters * resolved.training.global_batch_size
    )
    assert note.startswith(f"the index of {samples:,} samples is left to rank 0")
    assert "a Job may take 8Gi (platform.cpuJobs.maxIndexMemory; " in note
    suffices = note.rpartition("; ")[2].removesuffix(" suffices)")
    assert notes(with_jobs(resolved, suffices)) == []


def test_an_index_of_a_bridge_recipe_is_named_once(resolve: Any) -> None:
    training = {"trainIters": 1_000_000, "globalBatchSize": 256, "lrDecayIters": 1_000_000}
    found = resolve("deepseek-v2-lite", 8, data=DATA, training=training, init={"modelFolder": "/data/model"})
    assert len(notes(found)) == 1


@pytest.mark.parametrize(
    "data", [{"mockData": True}, DATA | {"check": False}], ids=["random tokens", "no check"]
)
def test_no_job_builds_an_index_of_these(data: dict[str, Any], resolve: Any) -> None:
    assert notes(resolve("mistral-7b", 64, data=data)) == []


def test_a_short_run_has_an_index_that_a_job_builds(resolve: Any) -> None:
    training = {"trainIters": 1000, "lrDecayIters": 1000, "lrWarmupIters": 10}
    resolved = resolve("mistral-7b", 64, data=DATA, training=training)
    assert notes(resolved) == []
    assert len(notes(with_jobs(resolved, "1Gi"))) == 1
