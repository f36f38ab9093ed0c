"""The Job that prepares `data.sources`, and what the megatron-prepare of its pods makes of its arguments."""

import json
from pathlib import Path
from typing import Any

from megatron_trainer.data import sources_command
from megatron_trainer.data.sources import parse_sources

Spec = dict[str, Any]


def with_sources(spec: Spec) -> None:
    spec["data"] = {
        "volume": {"claimName": "corpus"},
        "tokenizer": {"tokenizerType": "HuggingFaceTokenizer", "tokenizerModel": "/data/llama"},
        "sources": [
            {"path": "/data/raw/*.jsonl.zst", "format": "jsonl", "key": "body", "weight": 0.8},
            {"path": "/data/books.parquet", "format": "parquet", "documents": 10, "weight": 0.2},
        ],
        "prepare": {"workers": 3, "name": "mix"},
    }


def blend_of(built: Any) -> list[str]:
    own = built.job["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["containers"][0]["args"]
    at = own.index("--data-path")
    return list(own[at + 1 : at + 5])


def test_the_pods_share_the_sources_by_their_index_and_write_what_the_run_reads(run: Any) -> None:
    built = run("tiny-gpt", with_sources).build()
    spec = built.prepare_job["spec"]
    assert (spec["completions"], spec["parallelism"], spec["completionMode"]) == (3, 3, "Indexed")
    words = spec["template"]["spec"]["containers"][0]["args"]
    args = sources_command._parse(words[: words.index("--")] if "--" in words else words)
    found = parse_sources(args.sources)
    assert [(s.path, s.format, s.key, s.documents) for s in found] == [
        ("/data/raw/*.jsonl.zst", "jsonl", "body", None),
        ("/data/books.parquet", "parquet", "text", 10),
    ]
    assert (args.pods, args.tokenizer_dir, args.append_eod) == (3, Path("/data/llama"), True)
    weights_and_paths = ["0.8", str(found[0].output), "0.2", str(found[1].output)]
    assert blend_of(built) == weights_and_paths
    assert all(source.output.is_relative_to("/data/prepared") for source in found)


def test_recipes_with_the_same_source_have_its_dataset_in_common(run: Any) -> None:
    def other(spec: Spec) -> None:
        with_sources(spec)
        spec["data"]["sources"][1]["documents"] = 11

    first, second = blend_of(run("tiny-gpt", with_sources).build()), blend_of(run("tiny-gpt", other).build())
    assert first[1] == second[1]
    assert first[3] != second[3]


def test_one_pod_prepares_sources_without_more_settings(run: Any) -> None:
    def alone(spec: Spec) -> None:
        with_sources(spec)
        del spec["data"]["prepare"]

    spec = run("tiny-gpt", alone).build().prepare_job["spec"]
    assert "completions" not in spec
    words = spec["template"]["spec"]["containers"][0]["args"]
    assert json.loads(words[words.index("--sources") + 1])[0]["output"].startswith("/data/prepared/corpus-")
