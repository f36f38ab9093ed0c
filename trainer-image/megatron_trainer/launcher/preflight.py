"""The preflight of a pod: its devices before it joins the gang, then pairs of nodes before the ranks start.

The gang's part runs in every generation with a new pod. Node 0 coordinates it through the gang's store: it
compares what the pods measured, has neighbours in a ring exchange data, then those nodes that exchanged none
with others that did, and announces which nodes are at fault. Without evidence nobody is named and the ranks
start.
"""

import json
import os
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from megatron_contract.environment import ENV_NODE_NAME
from megatron_contract.exit_codes import ExitCode
from megatron_contract.hardware import Evidence

from megatron_trainer.health.node_faults import DeviceReport
from megatron_trainer.health.preflight_files import (
    DEVICE_CHECK_SECONDS,
    DEVICE_START_SECONDS,
    report_file,
    result_file,
    started_file,
)
from megatron_trainer.launcher.fork_server import FIRST_DEVICE_CHECK, FIRST_PAIR_CHECK, ForkServer
from megatron_trainer.launcher.preflight_coordinator import Coordinator, Fault, Round, verdict_key
from megatron_trainer.rendezvous.state import RunEndedError
from megatron_trainer.settings import Settings
from megatron_trainer.telemetry.reporter import PAIRS_ENV
from megatron_trainer.termination import Ending

if TYPE_CHECKING:
    # Imports torch.
    from megatron_trainer.rendezvous.handler import GangRendezvous

_POLL_SECONDS = 0.05
# After the limit of a check within its process: a process that does not even end itself.
_GRACE_SECONDS = 10.0
_DEVICE_SECONDS = DEVICE_START_SECONDS + DEVICE_CHECK_SECONDS + _GRACE_SECONDS


@dataclass(frozen=True)
class _Node:
    """This pod's place in the gang."""

    settings: Settings

    @property
    def name(self) -> str:
        """Its number and the name of the cluster's node, or of the host."""
        host = os.environ.get(ENV_NODE_NAME) or socket.gethostname()
        return f"node {self.settings.node_rank} ({host})"

    def environment(self, local: int) -> dict[str, str]:
        """The environment of a check by the rank `local`."""
        settings = self.settings
        return {
            "RANK": str(self.rank(local)),
            "LOCAL_RANK": str(local),
            "LOCAL_WORLD_SIZE": str(settings.ranks_per_node),
        }

    def rank(self, local: int) -> int:
        """The global rank of the rank `local`."""
        return self.settings.node_rank * self.settings.ranks_per_node + local


class DeviceChecks:
    """The check of this pod's devices, a process for each."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        self._node, self._folder = _Node(settings), folder
        self._ranks = range(settings.ranks_per_node)

    def environments(self) -> dict[int, dict[str, str]]:
        """What the fork server is to start: the environment of each check, by the child's key."""
        return {FIRST_DEVICE_CHECK - local: self._node.environment(local) for local in self._ranks}

    def done(self, exited: Mapping[int, int]) -> bool:
        """Whether each process has ended, or is long overdue. `exited`: exit codes by the child's key."""
        return all(FIRST_DEVICE_CHECK - local in exited or self._overdue(local) for local in self._ranks)

    def reports(self) -> list[DeviceReport]:
        """What the processes found. One that left no report shows nothing, unless it does not end."""
        return [self._report(local) for local in self._ranks]

    def ending(self) -> Ending | None:
        """How this pod ends because a device is at fault by itself."""
        at_fault = [report for report in self.reports() if report.fault]
        if not at_fault:
            return None
        worst = min(at_fault, key=lambda report: not report.evidence)
        message = f"rank {worst.rank}: preflight: {self._node.name}: {worst.fault}"
        evidence = Evidence(worst.evidence) if worst.evidence else None
        return Ending(ExitCode.WORKER_DIED, message, worst.rank, evidence)

    def _report(self, local: int) -> DeviceReport:
        try:
            text = report_file(self._folder, local).read_text()
        except OSError:
            late = f"no answer within {_DEVICE_SECONDS:.0f} s"
            return DeviceReport(self._node.rank(local), fault=late if self._overdue(local) else "")
        return DeviceReport(**json.loads(text))

    def _overdue(self, local: int) -> bool:
        try:
            started = started_file(self._folder, local).stat().st_mtime
        except OSError:
            return False
        return time.time() - started > _DEVICE_SECONDS


class GangPreflight:
    """This pod's part in the check of all nodes."""

    def __init__(
        self,
        settings: Settings,
        fork_server: ForkServer,
        folder: Path,
        reports: list[DeviceReport],
        log: Callable[[str], None],
    ) -> None:
        self._settings, self._node = settings, _Node(settings)
        self._fork_server, self._folder = fork_server, folder
        self._reports = reports
        self._log = log
        self._round: Round | None = None
        self._deadline = 0.0

    def run(self, gang: "GangRendezvous") -> Ending | None:
        """Check the nodes together. Returns how this pod ends if its node is at fault.

        Returns None too when the generation is over: it ends when any node is at fault. Raises RunEndedError
        when this pod must stop, and StoreLostError.
        """
        self._round = None
        generation, began = gang.generation, time.monotonic()
        measured = {"name": self._node.name, "ranks": [report.to_json() for report in self._reports]}
        gang.share(f"measured/{generation}/{gang.node_rank}", json.dumps(measured))
        coordinator = Coordinator(gang, self._settings.platform) if gang.node_rank == 0 else None
        try:
            while gang.poll().generation == generation:
                if ending := gang.interruption():
                    raise RunEndedError(ending)
                if coordinator is not None:
                    coordinator.step()
                self._take_part(gang)
                if gang.store.reached(verdict_key(generation), 1):
                    return self._conclude(gang, time.monotonic() - began)
                gang.store.wait(_POLL_SECONDS)
        finally:
            self._fork_server.stop()
            if coordinator is not None:
                coordinator.close()
        return None

    def _conclude(self, gang: "GangRendezvous", seconds: float) -> Ending | None:
        verdict = json.loads(gang.store.get(f"{verdict_key(gang.generation)}/0") or "{}")
        faults = {int(node): Fault(**fault) for node, fault in verdict["faults"].items()}
        for note in verdict["notes"]:
            self._log(f"preflight: {note}")
        if not faults:
            self._log(f"preflight: no node at fault, {seconds:.2f} s")
            return None
        own = faults.get(gang.node_rank)
        if own is not None:
            evidence = Evidence(own.evidence) if own.evidence else None
            return Ending(ExitCode.WORKER_DIED, own.text, None, evidence)
        for fault in faults.values():
            self._log(fault.text)
        while gang.poll().generation == gang.generation:
            if ending := gang.interruption():
                raise RunEndedError(ending)
            gang.store.wait(_POLL_SECONDS)
        return None

    def _take_part(self, gang: "GangRendezvous") -> None:
        """Start this pod's exchanges of a new round; share the results of one that is done."""
        current = self._round
        number = 0 if current is None else current.number + 1
        if gang.store.reached(f"round/{gang.generation}", number + 1):
            text = gang.store.get(f"round/{gang.generation}/{number}")
            self._round = current = Round(**json.loads(text or "{}"))
            self._start(gang, current)
            return
        if current is None or not self._deadline:
            return
        exited = self._fork_server.exited(0)
        local = range(self._settings.ranks_per_node)
        if all(FIRST_PAIR_CHECK - each in exited for each in local) or time.monotonic() > self._deadline:
            self._deadline = 0.0
            results = self._results(current.peers(gang.node_rank))
            gang.share(f"{current.results_key(gang.generation)}/{gang.node_rank}", json.dumps(results))

    def _start(self, gang: "GangRendezvous", current: Round) -> None:
        peers = current.peers(gang.node_rank)
        if not any(peer is not None for peer in peers):
            return
        plan = {
            "key": f"{gang.generation}/{current.number}",
            "node": gang.node_rank,
            "peers": peers,
            "start": current.start_seconds,
        }
        local = range(self._settings.ranks_per_node)
        for each in local:
            result_file(self._folder, each).unlink(missing_ok=True)
        self._deadline = time.monotonic() + current.limit + _GRACE_SECONDS
        self._fork_server.start(
            {
                FIRST_PAIR_CHECK - each: self._node.environment(each)
                | {
                    "MASTER_ADDR": gang.master_addr,
                    "MASTER_PORT": str(current.port),
                    PAIRS_ENV: json.dumps(plan),
                }
                for each in local
            }
        )

    def _results(self, peers: list[int | None]) -> dict[str, Any]:
        """Why the pair with each peer failed, by any rank; `silent` if no rank left a result."""
        found = []
        for local in range(self._settings.ranks_per_node):
            path = result_file(self._folder, local)
            found.append(json.loads(path.read_text()) if path.exists() else None)
        pairs = {
            str(peer): next(
                (error for each in found if (error := "no result" if each is None else each[str(peer)])), ""
            )
            for peer in peers
            if peer is not None
        }
        return {"pairs": pairs, "silent": not any(each is not None for each in found)}
