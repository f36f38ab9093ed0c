"""The checkpoint with the lowest validation loss outlives newer ones, a killed rank and a replaced pod."""

import json
import re

from megatron_contract.environment import VALIDATION_FILE

from tests.trainer.gang import TRAIN_ITERS, Gang

INTERVAL = 4
# The learning rate rises so high that the loss does.
RISING = f"--lr 3.0 --lr-warmup-iters {TRAIN_ITERS}".split()
EVALUATED = f"--save-interval {INTERVAL} --eval-interval {INTERVAL} --eval-iters 1".split()


def test_the_best_checkpoint_is_kept_beside_the_newest_whatever_breaks(pod: Gang) -> None:
    pod.flags += [*RISING, *EVALUATED]
    pod.environment |= {"MEGATRON_KEEP_CHECKPOINTS": "1", "MEGATRON_KEEP_BEST": "1"}
    pod.start()
    pod.await_iteration(2 * INTERVAL + 1)
    pod.kill_rank(0)
    pod.await_iteration(3 * INTERVAL + 1, generation=2)
    pod.replace(0)
    assert pod.wait() == [0], pod.log()[-3000:]

    lines = [json.loads(line) for line in (pod.save / VALIDATION_FILE).read_text().splitlines()]
    losses = {line["iteration"]: line["lmLoss"] for line in lines if "lmLoss" in line}
    assert sorted(losses) == list(range(INTERVAL, TRAIN_ITERS + 1, INTERVAL))
    best = min(losses, key=lambda iteration: losses[iteration])
    assert best < TRAIN_ITERS - INTERVAL, f"the loss does not rise again: {losses}"
    kept = sorted(int(path.name[5:]) for path in pod.save.glob("iter_*") if path.name[5:].isdecimal())
    assert kept == [best, TRAIN_ITERS]
    deleted = {int(each) for each in re.findall(r"deleted checkpoint iter_0*(\d+):", pod.log())}
    assert best not in deleted
    assert deleted >= {each for each in losses if best < each < TRAIN_ITERS - INTERVAL}
    message = pod.termination(0)
    assert (message["bestCheckpointIteration"], message["bestCheckpointLoss"]) == (best, losses[best])
