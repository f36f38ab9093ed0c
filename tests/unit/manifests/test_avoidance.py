"""Nodes that pods keep off."""

import copy
from typing import Any

from megatron_operator.manifests.node_avoidance import avoided, avoiding


def test_all_pods_keep_off_the_nodes_beside_what_they_need_anyway(run: Any) -> None:
    job = run("llama3-8b-64-gpus").build().job
    kept = copy.deepcopy(job)
    marked = avoiding(job, ["node-b", "node-a"])
    assert job == kept, "the job that was given is left as it is"
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


def test_it_is_the_same_job_still(run: Any) -> None:
    job = run("tiny-gpt").build().job
    assert avoiding(job, ["node-a"])["metadata"] == job["metadata"]


def test_taking_all_back_leaves_the_job_as_it_was(run: Any) -> None:
    for recipe in ("llama3-8b-64-gpus", "tiny-gpt", "one-gpu"):
        job = run(recipe).build().job
        assert avoided(job) == frozenset()
        assert avoiding(avoiding(job, ["a", "b"]), []) == job
        assert avoiding(avoiding(job, ["a", "b"]), ["c"]) == avoiding(job, ["c"])


def test_pods_that_need_no_kind_of_node_can_keep_off_some(run: Any) -> None:
    job = run("one-gpu").build().job
    for replica in job["spec"]["pytorchReplicaSpecs"].values():
        del replica["template"]["spec"]["affinity"]
    assert avoided(avoiding(job, ["a"])) == {"a"}
    assert avoiding(avoiding(job, ["a"]), []) == job
