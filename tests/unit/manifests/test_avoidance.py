"""Node affinity that makes pods avoid nodes."""

import copy
from typing import Any

from megatron_operator.manifests.node_avoidance import avoided, avoiding


def test_avoided_nodes_are_added_to_the_affinity_of_all_pods(run: Any) -> None:
    job = run("llama3-8b-64-gpus").build().job
    kept = copy.deepcopy(job)
    marked = avoiding(job, ["node-b", "node-a"])
    assert job == kept, "the argument is not modified"
    assert avoided(marked) == {"node-a", "node-b"}
    for replica in marked["spec"]["pytorchReplicaSpecs"].values():
        affinity = replica["template"]["spec"]["affinity"]
        required = affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        [term] = required["nodeSelectorTerms"]
        assert term["matchExpressions"][-1] == {
            "key": "kubernetes.io/hostname",
            "operator": "NotIn",
            "values": ["node-a", "node-b"],
        }
        assert len(term["matchExpressions"]) > 1
        assert "podAffinity" in affinity


def test_avoided_nodes_do_not_change_the_jobs_metadata(run: Any) -> None:
    job = run("tiny-gpt").build().job
    assert avoiding(job, ["node-a"])["metadata"] == job["metadata"]


def test_avoiding_no_nodes_restores_the_job(run: Any) -> None:
    for recipe in ("llama3-8b-64-gpus", "tiny-gpt", "one-gpu"):
        job = run(recipe).build().job
        assert avoided(job) == frozenset()
        assert avoiding(avoiding(job, ["a", "b"]), []) == job
        assert avoiding(avoiding(job, ["a", "b"]), ["c"]) == avoiding(job, ["c"])


def test_pods_without_affinity_can_avoid_nodes(run: Any) -> None:
    job = run("one-gpu").build().job
    for replica in job["spec"]["pytorchReplicaSpecs"].values():
        del replica["template"]["spec"]["affinity"]
    assert avoided(avoiding(job, ["a"])) == {"a"}
    assert avoiding(avoiding(job, ["a"]), []) == job
