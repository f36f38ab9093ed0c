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
    assert merge({2: {"phase": "rendezvous", "iteration": None}}) == {
        "phase": "rendezvous",
        "iteration": None,
    }
