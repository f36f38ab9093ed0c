"""The preflight: devices are checked before a pod joins its gang, connections before any rank starts."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.trainer.gang import Gang
from tests.trainer.warm_process import WarmProcess


@pytest.fixture
def four(tmp_path: Path, corpus: Path, warm: WarmProcess) -> Iterator[Gang]:
    """A run of four pods of one rank, with the preflight."""
    run = Gang(tmp_path, corpus, nodes=4, warm=warm)
    run.environment["MEGATRON_PREFLIGHT"] = "1"
    yield run
    run.stop()


def test_a_faulty_device_ends_its_pod_before_it_joins_and_the_other_waits_for_the_replacement(
    gang: Gang,
) -> None:
    gang.environment |= {"MEGATRON_PREFLIGHT": "1", "MEGATRON_NODE_NAME": "gpu-7"}
    gang.inject({"what": "wrong-product", "rank": 3})
    gang.start()
    assert gang.pods[1].wait(timeout=300) == 138
    message = gang.termination(1)
    assert (message["nodeRank"], message["rank"], message["evidence"]) == (1, 3, "Preflight")
    assert message["message"].startswith("rank 3: preflight: node 1 (gpu-7): ")
    assert "elements of a known product are wrong" in message["message"]
    gang.inject()
    gang.start(1)
    gang.await_iteration(1)
    assert gang.pods[0].poll() is None
    assert gang.incidents() == []
    assert "preflight: no node at fault" in gang.log()


@pytest.mark.parametrize(
    ("fault", "rank", "text"),
    [
        ("slow-product", 2, "rank 2: product: "),
        ("wrong-sum", 0, "no exchange with nodes 1, 3 (FaultError: a sum over all members is wrong)"),
    ],
)
def test_a_node_that_differs_from_the_others_ends_with_evidence_before_any_rank_starts(
    four: Gang, fault: str, rank: int, text: str
) -> None:
    four.environment["MEGATRON_NODE_NAME"] = "gpu-7"
    four.inject({"what": fault, "rank": rank})
    four.start()
    assert four.pods[rank].wait(timeout=300) == 138
    message = four.termination(rank)
    assert (message["nodeRank"], message["rank"], message["evidence"]) == (rank, None, "Preflight")
    assert message["message"].startswith(f"preflight: node {rank} (gpu-7): {text}")
    assert four.records() == []


def test_a_node_that_no_other_hears_is_named_and_the_run_trains_with_its_replacement(four: Gang) -> None:
    four.inject({"what": "deaf", "rank": 1})
    four.start()
    assert four.pods[1].wait(timeout=300) == 138
    message = four.termination(1)
    assert (message["nodeRank"], message["evidence"]) == (1, "Preflight")
    assert "): no exchange with nodes 0, 2 (" in message["message"]
    four.inject()
    four.start(1)
    four.await_iteration(1)
    (incident,) = four.incidents()
    assert (incident["kind"], incident["nodeRank"]) == ("pod", 1)
    assert message["message"] in incident["cause"]


def test_a_node_that_does_not_answer_is_named_without_evidence_against_its_hardware(four: Gang) -> None:
    four.inject({"what": "freeze-exchange", "rank": 3})
    four.start()
    assert four.pods[3].wait(timeout=300) == 138
    message = four.termination(3)
    assert "evidence" not in message or not message["evidence"]
    assert message["message"].startswith("preflight: node 3 (")
    assert message["message"].endswith("): did not answer")


@pytest.mark.repeats
def test_two_nodes_that_do_not_reach_each_other_train_since_neither_is_known_to_be_at_fault(
    gang: Gang,
) -> None:
    gang.environment["MEGATRON_PREFLIGHT"] = "1"
    gang.inject({"what": "deaf", "rank": 2})
    gang.start()
    gang.await_iteration(1)
    assert "no exchange between nodes 0 and 1, and it is not known which is at fault" in gang.log()
    assert gang.incidents() == []
