"""One report of what several pods say."""

from megatron_operator.controller.progress import merge


def test_the_first_pod_speaks_and_others_fill_in_what_it_cannot_know() -> None:
    first = {"phase": "training", "nodeRank": 0, "iteration": 7, "lmLoss": None, "generation": 2}
    last = {"phase": "loading", "nodeRank": 3, "iteration": 8, "lmLoss": 2.5, "generation": 2}
    merged = merge({0: first, 3: last})
    assert merged["phase"] == "training"
    assert merged["lmLoss"] == 2.5
    assert merged["iteration"] == 8


def test_without_the_first_pod_the_next_one_speaks() -> None:
    merged = merge({2: {"phase": "rendezvous", "iteration": None}})
    assert (merged["phase"], merged["iteration"]) == ("rendezvous", None)


def test_a_new_pod_that_knows_of_no_incident_yet_hides_none() -> None:
    old = [{"generation": 2, "metAt": None}]
    newer = [{"generation": 2, "metAt": 5.0}]
    for reports in (
        {0: {"incidents": []}, 1: {"incidents": newer}},
        {0: {"incidents": old}, 1: {"incidents": newer}},
    ):
        assert merge(reports)["incidents"] == newer


def test_every_pods_warnings_are_told_once() -> None:
    low, slow = {"reason": "CheckpointVolumeLow"}, {"reason": "SlowRank"}
    assert merge({0: {"warnings": [low]}, 1: {"warnings": [low, slow]}})["warnings"] == [low, slow]
