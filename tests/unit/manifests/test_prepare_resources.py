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
        ("tiny-gpt", sources(3), "2049Mi"),
        ("tiny-gpt", sources(1), "2049Mi"),
        ("llama3.1-8b-chats", None, "1536Mi"),
        ("llama3.1-8b-chats", pictures, "2Gi"),
    ],
    ids=["documents by several pods", "documents and their index", "answers by Bridge", "pictures"],
)
def test_memory_is_that_of_what_a_pod_runs(
    run: Any, recipe: str, change: Callable[[Spec], None] | None, memory: str
) -> None:
    assert requests(run(recipe, change).build().prepare_job) == {"cpu": "1", "memory": memory}


@pytest.mark.parametrize("prepared", ["sources", "source"])
def test_an_index_grows_with_the_run_and_one_of_too_many_samples_is_left_to_rank_0(
    run: Any, prepared: str
) -> None:
    def iterations(count: int) -> Callable[[Spec], None]:
        def change(spec: Spec) -> None:
            sources(1)(spec)
            spec["training"] = {"trainIters": count, "globalBatchSize": 128}
            spec["training"] |= {"lrWarmupIters": 1, "lrDecayIters": count}
            if prepared == "source":
                spec["data"] = {"volume": {"claimName": "corpus"}, "prepare": {"source": "/data/raw"}}

        return change

    few, many, most = (run("tiny-gpt", iterations(n)).build().prepare_job for n in (1000, 500_000, 1_000_000))
    # 1 GiB each for documents and for the index, and 64 bytes a sample.
    assert [requests(each)["memory"] for each in (few, many, most)] == ["2056Mi", "5955Mi", "1Gi"]
    args = [each["spec"]["template"]["spec"]["containers"][0]["args"] for each in (many, most)]
    mark = "--index" if prepared == "sources" else "--"
    assert [mark in words for words in args] == [True, False]
    mounted = [
        [volume["name"] for volume in each["spec"]["template"]["spec"]["volumes"]] for each in (many, most)
    ]
    assert ["checkpoints" in names for names in mounted] == [True, False]


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ({"memory": "4Gi"}, {"cpu": "1", "memory": "4Gi"}),
        ({"cpu": "8"}, {"cpu": "8", "memory": "2049Mi"}),
        ({"cpu": "250m", "memory": "900Mi"}, {"cpu": "250m", "memory": "900Mi"}),
    ],
)
def test_a_recipe_sets_its_own(run: Any, own: dict[str, str], expected: dict[str, str]) -> None:
    def change(spec: Spec) -> None:
        sources(3)(spec)
        spec["data"]["prepare"]["resources"] = own

    assert requests(run("tiny-gpt", change).build().prepare_job) == expected
