"""Two Master pods never write the same checkpoint directory."""

from tests.trainer.gang import SAVE_INTERVAL, Gang, assert_same_training


def test_a_master_that_is_cut_off_stops_when_its_replacement_starts(pod: Gang, undisturbed: Gang) -> None:
    pod.start()
    pod.await_iteration(SAVE_INTERVAL + 1)
    pod.await_checkpoint(SAVE_INTERVAL)
    older = pod.pods.pop(0)
    # Only the volume connects the two: the new launcher has other ports.
    pod.cut_off()
    pod.start()
    assert older.wait(timeout=300) == 140
    assert pod.wait() == [0], pod.log()[-3000:]
    assert_same_training(pod, undisturbed)
    assert "was replaced and no longer writes checkpoints" in pod.log()
    assert [(each["kind"], each["cause"]) for each in pod.incidents()] == [("pod", "the pod was replaced")]
