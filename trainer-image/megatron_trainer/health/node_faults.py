"""Which node the measurements of the preflight show to be at fault. Pure: no torch, no I/O.

A rate is compared with the median of the same gang, never with a number of its own. Where a failure could be
that of either of two nodes, nobody is named.
"""

import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

FEWEST_COMPARED: Final = 3
"""Ranks below which a median shows nothing."""
FAILING_PAIRS: Final = 2
"""Pairs with healthy nodes that must fail before a node is at fault."""
MAX_ROUNDS: Final = 4
SLOWER_THAN_MEDIAN: Final = {"gpu": 2.0, "cpu": 10.0}
"""How many times slower than the median a product must be. Devices of one kind differ by a tenth; on the cpu
platform processor time is compared, which neighbours on the same core prolong by their use of its caches."""
LINKS_SLOWER_THAN_MEDIAN: Final = 4.0
"""Below what the place of a device in its node explains, above what a link that fell back to PCIe costs."""

Pair = tuple[int, int]


@dataclass(frozen=True, slots=True)
class DeviceReport:
    """What a rank measured on its own node.

    A rate is None where there is nothing to measure. `fault` is set if the device is at fault by itself, with
    `evidence` (one of hardware.Evidence) unless something else may explain it.
    """

    rank: int
    digest: str = ""
    product_rate: float | None = None
    """10^12 operations per second of a matrix product."""
    copy_rate: float | None = None
    """10^9 bytes per second of copies to another device of the node and back."""
    loopback_rate: float | None = None
    """10^9 bytes per second of a sum over the ranks of the pod through the network interface."""
    loopback_error: str = ""
    fault: str = ""
    evidence: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the report as a JSON object, without empty fields: a gang may have 16,384 of them."""
        return {name: value for name, value in asdict(self).items() if value not in ("", None)}


Reports = Mapping[int, Sequence[DeviceReport]]
"""The reports of the ranks, by node."""


def judge_devices(reports: Reports, platform: str) -> dict[int, str]:
    """The nodes at fault, with the reason: by a product that differs from the others', or by a low rate."""
    found: dict[int, list[str]] = {}
    for node, text in (
        *_different_products(reports),
        *_slow(reports, "product", _product_rate, SLOWER_THAN_MEDIAN[platform], "TFLOP/s"),
        *_slow(reports, "copies between devices", _copy_rate, LINKS_SLOWER_THAN_MEDIAN, "GB/s"),
        *_slow(reports, "network loopback", _loopback_rate, LINKS_SLOWER_THAN_MEDIAN, "GB/s"),
        *_failed_loopbacks(reports),
    ):
        found.setdefault(node, []).append(text)
    return {node: "; ".join(texts[:2]) for node, texts in found.items()}


def _product_rate(report: DeviceReport) -> float | None:
    return report.product_rate


def _copy_rate(report: DeviceReport) -> float | None:
    return report.copy_rate


def _loopback_rate(report: DeviceReport) -> float | None:
    return report.loopback_rate


def _each(reports: Reports) -> list[tuple[int, DeviceReport]]:
    return [(node, report) for node, of_node in sorted(reports.items()) for report in of_node]


def _different_products(reports: Reports) -> list[tuple[int, str]]:
    digests = Counter(report.digest for _, report in _each(reports) if report.digest)
    if not digests:
        return []
    most, count = digests.most_common(1)[0]
    if 2 * count <= digests.total():
        return []
    return [
        (node, f"rank {report.rank} got a different product than {count} of {digests.total()} ranks")
        for node, report in _each(reports)
        if report.digest not in ("", most)
    ]


def _slow(
    reports: Reports,
    what: str,
    rate: Callable[[DeviceReport], float | None],
    factor: float,
    unit: str,
) -> list[tuple[int, str]]:
    rates = [value for _, report in _each(reports) if (value := rate(report)) is not None]
    if len(rates) < FEWEST_COMPARED:
        return []
    median = statistics.median(rates)
    return [
        (node, f"rank {report.rank}: {what}: {value:.3g} {unit}, the median of all ranks is {median:.3g}")
        for node, report in _each(reports)
        if (value := rate(report)) is not None and value * factor < median
    ]


def _failed_loopbacks(reports: Reports) -> list[tuple[int, str]]:
    """A loopback that fails on most nodes is not possible in this network; on few, it shows their fault."""
    failed = {
        node: next(report.loopback_error for report in of_node if report.loopback_error)
        for node, of_node in sorted(reports.items())
        if any(report.loopback_error for report in of_node)
    }
    if 2 * len(failed) >= len(reports):
        return []
    return [(node, f"network loopback: {error}") for node, error in failed.items()]


def ring(nodes: int) -> list[list[Pair]]:
    """Pairs of neighbours in a ring of all nodes, in rounds in which every node has at most one pair."""
    if nodes == 2:
        return [[(0, 1)]]
    even = [(node, node + 1) for node in range(0, nodes - 1, 2)]
    odd = [(node, node + 1) for node in range(1, nodes - 1, 2)]
    last = (0, nodes - 1)
    if nodes % 2 == 0:
        return [even, [*odd, last]]
    return [even, odd, [last]]


def retests(nodes: int, results: Mapping[Pair, str]) -> list[Pair]:
    """Pairs that are still to be tried: a node without a passed pair with one that has passed another.

    `results`: why each pair failed, empty for one that passed. Empty once enough is known.
    """
    healthy = _healthy(results)
    suspects = [
        node
        for node in range(nodes)
        if node not in healthy and len(_failed_with_healthy(node, results)) < FAILING_PAIRS
    ]
    free = sorted(healthy)
    pairs = []
    for suspect in suspects:
        partner = next((each for each in free if _pair(suspect, each) not in results), None)
        if partner is not None:
            free.remove(partner)
            pairs.append(_pair(suspect, partner))
    return pairs


def judge_pairs(nodes: int, results: Mapping[Pair, str]) -> dict[int, str]:
    """The nodes at fault: no pair of theirs passed, and several failed whose other node passed one."""
    healthy = _healthy(results)
    return {
        node: f"no exchange with nodes {', '.join(map(str, failed))} ({results[_pair(node, failed[0])]})"
        for node in range(nodes)
        if node not in healthy and len(failed := _failed_with_healthy(node, results)) >= FAILING_PAIRS
    }


def _healthy(results: Mapping[Pair, str]) -> set[int]:
    """Nodes that exchanged data with another."""
    return {node for pair, error in results.items() if not error for node in pair}


def _failed_with_healthy(node: int, results: Mapping[Pair, str]) -> list[int]:
    others = [sum(pair) - node for pair, error in results.items() if error and node in pair]
    return sorted(set(others) & _healthy(results))


def _pair(one: int, other: int) -> Pair:
    return min(one, other), max(one, other)
