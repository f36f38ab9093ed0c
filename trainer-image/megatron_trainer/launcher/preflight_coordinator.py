"""What node 0 does in the gang's preflight: plan rounds of pairs, collect results, give the verdict."""

import json
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from megatron_contract.hardware import Evidence

from megatron_trainer.health import node_faults
from megatron_trainer.health.node_faults import DeviceReport, Pair
from megatron_trainer.health.preflight_files import EXCHANGE_SECONDS
from megatron_trainer.telemetry.incidents import FailureKind, FailureReport

if TYPE_CHECKING:
    # Imports torch.
    from megatron_trainer.rendezvous.handler import GangRendezvous

# All pods have joined and measured before.
_MEASURED_SECONDS = 15.0
# Nodes may start the first round apart, since their processes may import torch first.
_FIRST_START_SECONDS, _START_SECONDS = 10.0, 4.0
_RESULT_SECONDS = 15.0
_MAX_RETESTS = 1


@dataclass(frozen=True)
class Fault:
    """Why a node is at fault. `evidence` is one of hardware.Evidence; empty if it only did not answer."""

    text: str
    evidence: str = ""


@dataclass(frozen=True)
class Round:
    """Pairs of nodes that exchange data, in turns in which each node has at most one.

    `port` is that of the store on node 0 in which the processes of a pair meet; `start_seconds` is how long
    nodes may start apart.
    """

    number: int
    turns: list[list[Pair]]
    port: int
    start_seconds: float

    def peers(self, node: int) -> list[int | None]:
        """The node's peer in each turn."""
        return [next((sum(pair) - node for pair in turn if node in pair), None) for turn in self.turns]

    @property
    def limit(self) -> float:
        """Seconds within which all exchanges have passed or failed."""
        return self.start_seconds + len(self.turns) * EXCHANGE_SECONDS

    @property
    def pairs(self) -> list[Pair]:
        """All pairs."""
        return [(pair[0], pair[1]) for turn in self.turns for pair in turn]

    def results_key(self, generation: int) -> str:
        """The key of the gang's store below which each node leaves its results."""
        return f"result/{generation}-{self.number}"


def verdict_key(generation: int) -> str:
    """The key of the gang's store below which node 0 leaves the verdict, as `0`."""
    return f"verdict/{generation}"


class Coordinator:
    """Node 0's part. Call `step` until it has given the verdict."""

    def __init__(self, gang: "GangRendezvous", platform: str) -> None:
        self._gang, self._platform = gang, platform
        self._deadline = time.monotonic() + _MEASURED_SECONDS
        self._round: Round | None = None
        self._results: dict[Pair, str] = {}
        self._silent: set[int] = set()
        self._names: dict[int, str] = {}
        self._done = False
        self._meeting_point: Any = None

    def close(self) -> None:
        """Close the store in which pairs meet."""
        self._meeting_point = None

    def step(self) -> None:
        """Go on as far as the other nodes have answered. Raises StoreLostError."""
        if self._done:
            return
        if self._round is None:
            self._compare_devices()
        else:
            self._collect(self._round)

    def _arrived(self, key: str, count: int) -> dict[str, str] | None:
        """What the nodes left below `key`, once there are `count` or it is too late."""
        if self._gang.store.reached(key, count) or time.monotonic() > self._deadline:
            return self._gang.store.children(key)
        return None

    def _compare_devices(self) -> None:
        nodes = self._gang.nodes
        measured = self._arrived(f"measured/{self._gang.generation}", nodes)
        if measured is None:
            return
        found = {int(node): json.loads(text) for node, text in measured.items()}
        self._names = {node: str(each["name"]) for node, each in found.items()}
        reports = {node: [DeviceReport(**each) for each in of["ranks"]] for node, of in found.items()}
        self._silent = set(range(nodes)) - reports.keys()
        faults = node_faults.judge_devices(reports, self._platform)
        if faults or self._silent or nodes == 1:
            self._give_verdict(faults, [])
        else:
            self._begin(0, node_faults.ring(nodes), _FIRST_START_SECONDS)

    def _begin(self, number: int, turns: list[list[Pair]], start_seconds: float) -> None:
        self._round = Round(number, turns, self._meet(), start_seconds)
        self._deadline = time.monotonic() + self._round.limit + _RESULT_SECONDS
        self._gang.store.set(f"round/{self._gang.generation}/{number}", json.dumps(asdict(self._round)))

    def _meet(self) -> int:
        """The port of the store in which pairs meet."""
        import torch.distributed

        if self._meeting_point is None:
            self._meeting_point = torch.distributed.TCPStore(
                "localhost", 0, is_master=True, wait_for_workers=False
            )
        return int(self._meeting_point.port)

    def _collect(self, current: Round) -> None:
        nodes = {node for pair in current.pairs for node in pair}
        texts = self._arrived(current.results_key(self._gang.generation), len(nodes))
        if texts is None:
            return
        found = {int(node): json.loads(text) for node, text in texts.items()}
        self._silent |= {node for node in nodes if node not in found or found[node]["silent"]}
        for one, other in current.pairs:
            errors = [
                found[node]["pairs"][str(peer)] if node in found else f"node {node} did not answer"
                for node, peer in ((one, other), (other, one))
            ]
            self._results[one, other] = next(filter(None, errors), "")
        retests = node_faults.retests(self._gang.nodes, self._results)
        if retests and not self._silent and current.number < _MAX_RETESTS:
            self._begin(current.number + 1, [retests], _START_SECONDS)
            return
        faults = node_faults.judge_pairs(self._gang.nodes, self._results)
        notes = [
            f"no exchange between nodes {one} and {other}, and it is not known which is at fault: {error}"
            for (one, other), error in self._results.items()
            if error and not {one, other} & (faults.keys() | self._silent)
        ]
        self._give_verdict(faults, notes)

    def _give_verdict(self, at_fault: dict[int, str], notes: list[str]) -> None:
        """Announce the verdict, and start the next generation if a node is at fault."""
        self._done = True
        gang = self._gang
        faults = {node: Fault(self._describe(node, "did not answer")) for node in sorted(self._silent)}
        faults |= {
            node: Fault(self._describe(node, text), Evidence.PREFLIGHT)
            for node, text in at_fault.items()
            if node not in self._silent
        }
        verdict = {"faults": {node: asdict(fault) for node, fault in faults.items()}, "notes": notes[:8]}
        gang.store.set(f"{verdict_key(gang.generation)}/0", json.dumps(verdict))
        for node, fault in faults.items():
            if node:
                gang.advance(FailureReport(FailureKind.POD, fault.text, node))

    def _describe(self, node: int, text: str) -> str:
        return f"preflight: {self._names.get(node, f'node {node}')}: {text}"
