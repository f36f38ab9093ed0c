"""A failure that recurs at the same iteration: an older checkpoint, then a skip or the end of the run."""

from tests.trainer.gang import SAVE_INTERVAL, TRAIN_ITERS, Gang, assert_phases_in_order

SECOND = 2 * SAVE_INTERVAL
BAD = SECOND + 3
EVALUATED = SECOND + 4
NAN = "Unexpected result nan (message='found NaN in local forward loss calculation')"


def save_synchronously(run: Gang) -> None:
    """An asynchronous save of iteration SECOND may not be complete when iteration BAD fails."""
    run.flags.remove("--async-save")


def test_an_iteration_with_a_recurring_nan_loss_is_skipped_after_two_retries(
    pod: Gang, undisturbed: Gang
) -> None:
    save_synchronously(pod)
    pod.environment["MEGATRON_LOSS_ON_REPEAT"] = "skip"
    pod.inject({"what": "nan", "at": BAD})
    pod.start()
    assert pod.wait() == [0], pod.log()[-3000:]
    incidents = pod.incidents()
    assert [each["kind"] for each in incidents] == ["loss"] * 3
    assert [each["resumedFrom"] for each in incidents] == [SECOND, SAVE_INTERVAL, SAVE_INTERVAL]
    assert f"lm loss is nan at iteration {BAD}" in incidents[0]["cause"]
    assert_phases_in_order(incidents[-1])
    assert sorted(pod.losses()) == list(range(1, TRAIN_ITERS + 1))
    known = {i: losses[0] for i, losses in undisturbed.losses().items() if i < BAD}
    assert {i: losses[-1] for i, losses in pod.losses().items() if i < BAD} == known
    assert [i for i in pod.losses() if pod.losses()[i][-1] != pod.losses()[i][-1]] == [BAD]
    reasons = [path.read_text() for path in pod.save.glob("iter_*.rolled-back-*/why-set-aside.txt")]
    assert len(reasons) == 2
    assert all("lm loss is nan" in reason for reason in reasons)


def test_a_recurring_crash_ends_the_run_with_67_and_the_cause(pod: Gang) -> None:
    save_synchronously(pod)
    pod.environment |= {"MEGATRON_LOSS_SPIKE_FACTOR": "3", "MEGATRON_LOSS_SPIKE_WINDOW": "5"}
    pod.inject(
        {"what": "spike", "at": 7, "generations": [1]},
        {"what": "raise", "rank": 2, "at": BAD},
    )
    pod.start()
    assert pod.wait() == [67], pod.log()[-3000:]
    incidents = [(each["kind"], each["iteration"]) for each in pod.incidents()]
    # Whether the iteration of the spike counts as done depends on which rank ends first.
    assert incidents[0] in (("loss", 6), ("loss", 7))
    assert incidents[1:] == [("rank", BAD - 1), ("rank", BAD - 1)]
    message = pod.termination(0)["message"]
    assert message == (
        "rank 2: RuntimeError: sample 7 cannot be read; failed 3 times, starting from iteration "
        f"{SECOND} and iteration {SAVE_INTERVAL}; onRepeat is fail"
    )


def run_with_nan_in_evaluations(pod: Gang) -> str:
    """Run to exit code 67. Returns the termination message."""
    save_synchronously(pod)
    pod.flags += ["--eval-iters", "1", "--eval-interval", str(EVALUATED)]
    pod.inject({"what": "nan-in-evaluation"})
    pod.start()
    assert pod.wait() == [67], pod.log()[-3000:]
    return str(pod.termination(0)["message"])


def test_a_nan_that_an_evaluation_finds_ends_the_run_after_two_retries(pod: Gang) -> None:
    message = run_with_nan_in_evaluations(pod)
    assert [each["resumedFrom"] for each in pod.incidents()] == [SECOND, SAVE_INTERVAL]
    assert f"evaluation after iteration {EVALUATED}: {NAN}; failed 3 times" in message
    assert message.endswith("onRepeat is fail")


def test_an_iteration_whose_evaluation_finds_a_nan_is_skipped_but_not_the_last_one(pod: Gang) -> None:
    pod.environment["MEGATRON_LOSS_ON_REPEAT"] = "skip"
    message = run_with_nan_in_evaluations(pod)
    assert [each["resumedFrom"] for each in pod.incidents()] == [SECOND, SAVE_INTERVAL, SAVE_INTERVAL]
    assert f"evaluation after iteration {TRAIN_ITERS}: {NAN}; failed 4 times" in message
    assert message.endswith("the last iteration cannot be skipped")
    assert TRAIN_ITERS in pod.losses()


def test_a_nan_in_the_output_of_the_model_ends_the_run_with_the_iteration_of_its_step(pod: Gang) -> None:
    save_synchronously(pod)
    pod.inject({"what": "nan-output", "at": BAD})
    pod.start()
    assert pod.wait() == [67], pod.log()[-3000:]
    assert f"iteration {BAD}: {NAN}; failed 3 times" in str(pod.termination(0)["message"])
