"""What the pods that prepare data request."""

from collections.abc import Callable
from typing import Any

import pytest

Spec = dict[str, Any]


def requests(job: Spec) -> dict[str, str]:
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert container["resources"].keys() == {"requests"}, "a long document may need more for a while"
    return dict(container["resources"]["requests"])


def sources(workers: int) -> Callable[[Spec], None]:
    def change(spec: Spec) -> None:
        spec["data"] = {
            "volume": {"claimName": "corpus"},
            "tokenizer": {"tokenizerType": "HuggingFaceTokenizer", "tokenizerModel": "/data/llama"},
            "sources": [{"path": "/data/raw/*.jsonl", "format": "jsonl"}],
            "prepare": {"workers": workers},
        }
        spec["checkpoint"]["volume"] = {"claimName": "shared"}

    return change


def pictures(spec: Spec) -> None:
    spec["recipe"] = "gemma3-vl-4b-sft"
    spec["init"]["modelFolder"] = "/data/gemma-3-4b"
    spec["data"]["sources"] = [{"path": "/data/raw/*.tar", "format": "webdataset"}]


@pytest.mark.parametrize(
    ("recipe", "change", "memory"),
    [
        ("tiny-gpt", sources(3), "1Gi"),
        ("tiny-gpt", sources(1), "2Gi"),
        ("llama3.1-8b-chats", None, "1536Mi"),
        ("llama3.1-8b-chats", pictures, "2Gi"),
    ],
    ids=["documents", "documents and their index", "answers by Bridge", "pictures"],
)
def test_memory_is_that_of_what_a_pod_runs(
    run: Any, recipe: str, change: Callable[[Spec], None] | None, memory: str
) -> None:
    assert requests(run(recipe, change).build().prepare_job) == {"cpu": "1", "memory": memory}


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ({"memory": "4Gi"}, {"cpu": "1", "memory": "4Gi"}),
        ({"cpu": "8"}, {"cpu": "8", "memory": "1Gi"}),
        ({"cpu": "250m", "memory": "900Mi"}, {"cpu": "250m", "memory": "900Mi"}),
    ],
)
def test_a_recipe_sets_its_own(run: Any, own: dict[str, str], expected: dict[str, str]) -> None:
    def change(spec: Spec) -> None:
        sources(3)(spec)
        spec["data"]["prepare"]["resources"] = own

    assert requests(run("tiny-gpt", change).build().prepare_job) == expected
