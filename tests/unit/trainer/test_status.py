import json
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from megatron_trainer.telemetry.server import ProgressServer
from megatron_trainer.telemetry.status import Status

ITERATION = {
    "event": "iteration",
    "rank": 0,
    "generation": 2,
    "iteration": 7,
    "trainIters": 20,
    "lmLoss": 2.5,
    "learningRate": 1e-3,
    "stepSeconds": 0.2,
    "tokensPerSecond": 1000.0,
    "tflopsPerGpu": 0.5,
    "consumedSamples": 56,
}


@pytest.fixture
def status() -> Status:
    status = Status(node_rank=1, train_iters=20)
    status.begin(generation=2, resumed_from=5)
    return status


def test_unknown_values_are_null_and_known_ones_are_told() -> None:
    fields = Status(node_rank=1, train_iters=20).snapshot()
    assert fields["schema"] == 1
    assert (fields["phase"], fields["nodeRank"], fields["trainIters"]) == ("starting", 1, 20)
    assert [fields[name] for name in ("iteration", "lmLoss", "checkpointTime", "resumedFrom")] == [None] * 4


def test_an_iteration_is_told_with_all_its_figures(status: Status) -> None:
    status.apply(ITERATION)
    fields = status.snapshot()
    assert (fields["phase"], fields["iteration"], fields["lmLoss"]) == ("training", 7, 2.5)
    assert (fields["generation"], fields["resumedFrom"]) == (2, 5)


def test_events_of_an_earlier_generation_are_dropped(status: Status) -> None:
    status.apply(ITERATION | {"generation": 1})
    assert status.get("iteration") is None


def test_a_rank_that_does_not_know_the_loss_does_not_hide_the_one_that_does(status: Status) -> None:
    status.apply(ITERATION)
    status.apply(ITERATION | {"lmLoss": None})
    assert status.get("lmLoss") == 2.5
    status.apply(ITERATION | {"lmLoss": None, "iteration": 8})
    assert status.get("lmLoss") is None, "the loss of an earlier iteration is not told as that of this one"


def test_iterations_done_again_after_a_restart_are_told(status: Status) -> None:
    status.apply(ITERATION)
    status.begin(generation=3, resumed_from=5)
    status.apply(ITERATION | {"generation": 3, "iteration": 6})
    assert status.get("iteration") == 6


def test_last_words_of_ranks_are_kept_until_the_next_generation(status: Status) -> None:
    status.apply({"event": "failed", "rank": 3, "generation": 2, "exitCode": 67, "message": "lm loss is nan"})
    assert status.failures()[3]["exitCode"] == 67
    status.begin(generation=3, resumed_from=5)
    assert status.failures() == {}


def test_the_checkpoint_time_is_rfc3339(status: Status) -> None:
    status.checkpoint(5, 1_700_000_000.0)
    assert status.get("checkpointTime") == "2023-11-14T22:13:20Z"


@pytest.fixture
def url(status: Status) -> Iterator[str]:
    server = ProgressServer(0, status.snapshot)
    server.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def fetch(url: str) -> str:
    with urllib.request.urlopen(url) as answer:
        return str(answer.read().decode())


def test_progress_is_served_as_json(status: Status, url: str) -> None:
    status.apply(ITERATION)
    assert json.loads(fetch(f"{url}/progress")) == status.snapshot()


def test_a_loss_that_is_not_finite_is_null_since_json_has_no_word_for_it(status: Status, url: str) -> None:
    status.apply(ITERATION | {"lmLoss": float("nan"), "learningRate": float("inf")})
    fields = json.loads(fetch(f"{url}/progress"))
    assert (fields["lmLoss"], fields["learningRate"]) == (None, None)


def test_the_same_figures_are_served_as_metrics(status: Status, url: str) -> None:
    status.apply(ITERATION)
    status.checkpoint(5, 1_700_000_000.0)
    metrics = fetch(f"{url}/metrics")
    assert 'megatron_lm_loss{node_rank="1"} 2.5' in metrics
    assert 'megatron_checkpoint_timestamp_seconds{node_rank="1"} 1.7e+09' in metrics
    assert 'phase="training"' in metrics


def test_an_unknown_path_says_what_there_is(url: str) -> None:
    with pytest.raises(urllib.error.HTTPError) as refusal:
        fetch(f"{url}/elsewhere")
    assert refusal.value.code == 404
    assert b"/progress" in refusal.value.read()
