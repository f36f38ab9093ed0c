"""Records in the status what an elastic run could grow to."""

from megatron_operator.api.times import seconds, timestamp
from megatron_operator.lifecycle.elastic import LargerCount, track_larger_count
from megatron_operator.lifecycle.observation import ElasticCapacity
from megatron_operator.lifecycle.status_builder import StatusBuilder


def update_elastic_capacity(
    status: StatusBuilder, requested: int, count: int, fits: int | None
) -> ElasticCapacity:
    """The capacity of a run with `count` of the `requested` accelerators for which a plan on `fits` exists.

    All three are numbers of accelerators. For a run that was shrunk, the status records the larger count and
    since when it has been available.
    """
    shrunk = status.recovery.elastic
    if shrunk is None:
        return ElasticCapacity(requested, count, fits)
    since = seconds(shrunk.larger_since)
    known = LargerCount(shrunk.larger, since) if shrunk.larger and since is not None else None
    larger = track_larger_count(known, count=count, fits=fits, now=status.now)
    update = {
        "larger": larger and larger.count,
        "larger_since": None if larger is None else timestamp(larger.since),
    }
    status.set_recovery(elastic=shrunk.model_copy(update=update))
    if larger is None:
        return ElasticCapacity(requested, count, fits)
    return ElasticCapacity(requested, count, fits, larger.count, larger.since)
