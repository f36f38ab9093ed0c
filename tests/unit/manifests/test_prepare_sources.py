"""The Job that prepares `data.sources`, and what the megatron-prepare of its pods makes of its arguments."""

import json
from pathlib import Path
from typing import Any

import pytest
from megatron_operator.lifecycle.children import access_obstacle
from megatron_trainer.data import sources_command
from megatron_trainer.data.check import parse_needs
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


def test_a_source_for_validation_alone_is_prepared_and_checked_beside_those_to_train_on(run: Any) -> None:
    def held_out(spec: Spec) -> None:
        with_sources(spec)
        spec["data"]["sources"][1] = {"path": "/data/held-out.parquet", "validation": True}

    built = run("tiny-gpt", held_out).build()
    own = built.job["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["containers"][0]["args"]
    assert not {"--data-path", "--split"} & set(own)
    trained, evaluated = (own[own.index(flag) + 1] for flag in ("--train-data-path", "--valid-data-path"))
    words = built.prepare_job["spec"]["template"]["spec"]["containers"][0]["args"]
    listed = parse_sources(words[words.index("--sources") + 1])
    assert [str(source.output) for source in listed] == [trained, evaluated]
    needs = parse_needs(words[words.index("--") + 1 :], None, 1)
    assert needs is not None
    assert (needs.weights, needs.validation, needs.split) == ({trained: 1.0}, (evaluated,), "100,0,0")


def test_a_dataset_is_the_same_whatever_it_is_used_for(run: Any) -> None:
    def held_out(spec: Spec) -> None:
        with_sources(spec)
        spec["data"]["sources"][1]["validation"] = True

    args = run("tiny-gpt", held_out).build().job["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]
    own = args["containers"][0]["args"]
    before = blend_of(run("tiny-gpt", with_sources).build())
    assert (own[own.index("--train-data-path") + 1], own[own.index("--valid-data-path") + 1]) == (
        before[1],
        before[3],
    )


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


def test_a_pod_that_is_drained_costs_no_retry(run: Any) -> None:
    rules = run("tiny-gpt", with_sources).build().prepare_job["spec"]["podFailurePolicy"]["rules"]
    assert {"type": "DisruptionTarget", "status": "True"} in [
        each for rule in rules if rule["action"] == "Ignore" for each in rule["onPodConditions"]
    ]


@pytest.mark.parametrize(
    ("workers", "claim", "modes", "refused"),
    [
        (3, "corpus", ["ReadWriteOnce"], True),
        (3, "corpus", ["ReadWriteOnce", "ReadWriteMany"], False),
        (3, "other", ["ReadWriteOnce"], False),
        (1, "corpus", ["ReadWriteOnce"], False),
    ],
)
def test_several_pods_need_a_claim_that_several_nodes_mount(
    run: Any, workers: int, claim: str, modes: list[str], refused: bool
) -> None:
    def some(spec: Spec) -> None:
        with_sources(spec)
        spec["data"]["prepare"]["workers"] = workers

    existing = {"metadata": {"name": claim}, "spec": {"accessModes": modes}}
    obstacle = access_obstacle(run("tiny-gpt", some).build(), existing)
    assert (obstacle is not None) == refused
    if obstacle is not None:
        assert (
            "corpus is ReadWriteOnce, for the pods of one node, and data.prepare.workers is 3"
            in obstacle.message
        )


def test_the_last_step_knows_what_the_run_reads(run: Any) -> None:
    def twice(spec: Spec) -> None:
        with_sources(spec)
        spec["data"]["maxEpochs"] = 2

    built = run("tiny-gpt", twice)
    words = built.build().prepare_job["spec"]["template"]["spec"]["containers"][0]["args"]
    own, flags = words[: words.index("--")], words[words.index("--") + 1 :]
    args = sources_command._parse(own)
    needs = parse_needs(flags, args.vocab_size, args.max_epochs)
    assert needs is not None
    training = built.resolved.training
    assert (needs.vocab_size, needs.max_epochs) == (built.resolved.model.vocab_size, 2)
    assert (needs.seq_length, needs.samples) == (
        training.seq_length,
        training.train_iters * built.plan.global_batch_size,
    )
    assert list(needs.weights) == [str(source.output) for source in parse_sources(args.sources)]


@pytest.mark.parametrize(
    ("kind", "model"), [("SentencePieceTokenizer", "/data/llama.model"), ("TikTokenizer", "/data/own.json")]
)
def test_the_pods_get_the_flags_of_a_tokenizer_that_is_a_file(run: Any, kind: str, model: str) -> None:
    def change(spec: Spec) -> None:
        with_sources(spec)
        spec["data"]["tokenizer"] = {"tokenizerType": kind, "tokenizerModel": model}
        spec["megatronArgs"] = {"tiktoken-pattern": "v1"} if kind == "TikTokenizer" else {}

    built = run("tiny-gpt", change)
    words = built.build().prepare_job["spec"]["template"]["spec"]["containers"][0]["args"]
    own, flags = words[: words.index("--")], words[words.index("--") + 1 :]
    assert sources_command._parse(own).tokenizer_dir == Path(model)
    assert flags[flags.index("--tokenizer-type") + 1] == kind
    if kind == "TikTokenizer":
        assert flags[flags.index("--tiktoken-pattern") + 1] == "v1"
        assert flags[flags.index("--vocab-size") + 1] == str(built.resolved.model.vocab_size)
    assert blend_of(built.build())[1] != blend_of(run("tiny-gpt", with_sources).build())[1]
