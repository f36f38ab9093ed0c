"""Two Master pods never write one checkpoint directory."""

from tests.trainer.gang import SAVE_INTERVAL, Gang, assert_same_training


def test_a_master_on_a_node_that_is_cut_off_stops_when_its_replacement_has_begun(
    pod: Gang, undisturbed: Gang
) -> None:
    pod.start()
    pod.await_iteration(SAVE_INTERVAL + 1)
    pod.await_checkpoint(SAVE_INTERVAL)
    older = pod.pods.pop(0)
    # Nothing but the volume connects the two: a network, names and ports of its own.
    pod.cut_off()
    pod.start()
    assert older.wait(timeout=300) == 140
    assert pod.wait() == [0], pod.log()[-3000:]
    assert_same_training(pod, undisturbed)
    assert "was replaced and leaves its checkpoints alone" in pod.log()
    assert [(each["kind"], each["cause"]) for each in pod.incidents()] == [("pod", "the pod was replaced")]
