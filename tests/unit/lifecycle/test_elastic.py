"""On how many accelerators an elastic run can continue, and since when more are available."""

from typing import Any

import pytest
from megatron_operator import catalog
from megatron_operator.api.platform import PlatformConfig
from megatron_operator.lifecycle.desired import Config, desired_state
from megatron_operator.lifecycle.elastic import LargerCount, possible_counts, track_larger_count
from megatron_operator.lifecycle.status_builder import StatusBuilder


@pytest.mark.parametrize(
    ("capacity", "expected"),
    [(100, [64, 56, 48, 40, 32]), (57, [56, 48, 40, 32]), (39, [32]), (31, []), (0, [])],
)
def test_the_counts_are_of_whole_nodes_within_the_capacity(capacity: int, expected: list[int]) -> None:
    assert list(possible_counts(capacity, requested=64, min_count=32, per_node=8)) == expected


@pytest.mark.parametrize(("capacity", "expected"), [(4, [4]), (8, [4]), (3, [])])
def test_a_run_smaller_than_a_node_fits_or_does_not(capacity: int, expected: list[int]) -> None:
    assert list(possible_counts(capacity, requested=4, min_count=1, per_node=8)) == expected


def test_a_larger_count_is_tracked_from_when_it_became_available() -> None:
    known = track_larger_count(None, count=32, fits=48, now=100.0)
    assert known == LargerCount(48, 100.0)
    assert track_larger_count(known, count=32, fits=48, now=200.0) == LargerCount(48, 100.0)


def test_additional_capacity_does_not_reset_the_time() -> None:
    assert track_larger_count(LargerCount(48, 100.0), count=32, fits=64, now=200.0) == LargerCount(48, 100.0)


def test_a_smaller_larger_count_keeps_the_time() -> None:
    assert track_larger_count(LargerCount(64, 100.0), count=32, fits=48, now=200.0) == LargerCount(48, 100.0)


@pytest.mark.parametrize("fits", [None, 16, 32])
def test_capacity_that_is_gone_is_no_longer_tracked(fits: int | None) -> None:
    assert track_larger_count(LargerCount(64, 100.0), count=32, fits=fits, now=200.0) is None


def test_a_count_that_the_run_has_grown_to_is_no_longer_tracked() -> None:
    assert track_larger_count(LargerCount(48, 100.0), count=48, fits=64, now=200.0) == LargerCount(64, 200.0)


def test_a_run_grows_back_whose_layout_would_now_be_refused_for_its_memory() -> None:
    platform = PlatformConfig.model_validate({"accelerators": {"h100-sxm": {}}, "image": "trainer"})
    config = Config(platform, catalog.load())
    sizes = {"tensorModelParallelSize": 1, "pipelineModelParallelSize": 1, "contextParallelSize": 1}
    spec: dict[str, Any] = {
        "recipe": "llama3-8b",
        "accelerator": {"type": "h100-sxm", "count": 16},
        "data": {"mockData": True},
        "recovery": {"elastic": {"minCount": 8}},
        "parallelism": sizes,
    }

    def recipe(**status: Any) -> StatusBuilder:
        metadata = {"name": "run", "namespace": "default", "uid": "uid", "generation": 1}
        return StatusBuilder.of({"metadata": metadata, "spec": spec, "status": status}, 0.0)

    plan: dict[str, Any] = desired_state(recipe(), config, 8).plan.wire()
    ran = plan | {"memoryPerGpu": plan["memoryPerGpu"] | {"activations": 1 << 40, "total": 2 << 40}}
    spec |= {
        "parallelism": sizes | {"recomputeGranularity": "selective"},
        "training": {"microBatchSize": 2},
    }
    grown = desired_state(recipe(plan=ran), config, 16).plan
    assert (grown.world_size, grown.data_parallel_size, grown.micro_batch_size) == (16, 16, 2)
