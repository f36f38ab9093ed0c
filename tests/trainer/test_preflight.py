"""The preflight: devices and connections are checked before a pod's first ranks load."""

from tests.trainer.gang import Gang


def test_a_faulty_device_ends_its_pod_and_the_other_waits_for_the_replacement(gang: Gang) -> None:
    gang.environment["MEGATRON_PREFLIGHT"] = "1"
    gang.inject({"what": "wrong-product", "rank": 3})
    gang.start()
    assert gang.pods[1].wait(timeout=300) == 138
    message = gang.termination(1)
    assert (message["nodeRank"], message["rank"]) == (1, 3)
    assert message["message"].startswith("rank 3: preflight: rank 3 on node 1 (")
    assert "elements of a known product are wrong" in message["message"]
    gang.inject()
    gang.start(1)
    gang.await_iteration(1)
    assert gang.pods[0].poll() is None
    (incident,) = gang.incidents()
    assert (incident["kind"], incident["nodeRank"], incident["rank"]) == ("pod", 1, 3)
    assert incident["cause"] == f"{message['message']}; node 1 was replaced"
