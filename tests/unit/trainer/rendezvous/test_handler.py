"""The rendezvous of pods over a real store on loopback; each pod is a thread."""

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from typing import IO, Any

import pytest
from megatron_contract.exit_codes import ExitCode
from megatron_trainer.rendezvous.handler import GangRendezvous
from megatron_trainer.rendezvous.state import GenerationPlan, RunEndedError, State
from megatron_trainer.rendezvous.store import GangStore, StoreLostError
from megatron_trainer.telemetry.incidents import FailureKind, FailureReport
from megatron_trainer.termination import Ending

from testkit.ports import free_port

KILLED = FailureReport(FailureKind.RANK, "rank 2 was killed by SIGKILL", 1, 2, detected_at=1000.0)
LOST_A_PEER = FailureReport(FailureKind.POD, "rank 0: ncclSystemError", detected_at=1000.0)


@pytest.fixture
def port() -> int:
    return free_port()


def pod(
    port: int,
    node_rank: int,
    nodes: int = 2,
    timeout: float = 60,
    prepare: Callable[[State, bool], GenerationPlan] = lambda _state, _new: GenerationPlan(20),
    interruption: Callable[[], Ending | None] = lambda: None,
    completed: Callable[[FailureReport | None], Ending | None] = lambda _report: None,
) -> GangRendezvous:
    return GangRendezvous(
        store=GangStore("localhost", port, host=node_rank == 0),
        run_id="run",
        node_rank=node_rank,
        nodes=nodes,
        master_addr="localhost",
        timeout=timeout,
        prepare=prepare,
        interruption=interruption,
        completed=completed,
        log=lambda _text: None,
    )


class Rendezvous:
    """Runs the rendezvous of several pods at once; `join` returns the plan or the ending of each.

    `addresses` are those that the ranks of each get.
    """

    def __init__(self, *pods: GangRendezvous) -> None:
        self.addresses: dict[int, str] = {}
        self._outcomes: dict[int, object] = {}
        self._threads = [threading.Thread(target=self._go, args=(each,), daemon=True) for each in pods]
        for thread in self._threads:
            thread.start()

    def _go(self, each: GangRendezvous) -> None:
        try:
            info = each.next_rendezvous()
            self.addresses[each.node_rank] = info.bootstrap_store_info.master_addr
            self._outcomes[each.node_rank] = each.plan
        except RunEndedError as ended:
            self._outcomes[each.node_rank] = ended.ending

    def join(self) -> dict[int, object]:
        for thread in self._threads:
            thread.join(timeout=60)
            assert not thread.is_alive()
        return self._outcomes


def wait_for_state(each: GangRendezvous, condition: Callable[[State], bool]) -> State:
    """A pod's first state that meets the condition: what another pod changed may still be on its way."""
    deadline = time.monotonic() + 60
    while not condition(state := each.poll()):
        assert time.monotonic() < deadline, state
        each.store.wait(1)
    return state


@pytest.fixture
def met(port: int) -> list[GangRendezvous]:
    pods = [pod(port, 0), pod(port, 1)]
    Rendezvous(*pods).join()
    return pods


def test_all_pods_get_the_plan_of_node_0(port: int) -> None:
    pods = [pod(port, rank, nodes=3, prepare=lambda _state, _new: GenerationPlan(40)) for rank in (2, 0, 1)]
    plans = Rendezvous(*pods).join()
    assert plans[0] == plans[1] == plans[2]
    assert all(each.plan is not None and each.plan.iteration == 40 for each in pods)
    assert {each.generation for each in pods} == {1}


def test_nothing_takes_the_port_of_the_process_group_before_rank_0_listens(port: int) -> None:
    plan = Rendezvous(pod(port, 0, nodes=1)).join()[0]
    assert isinstance(plan, GenerationPlan)
    first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    assert not first <= plan.master_port <= last, "the kernel gives it to any connection"
    with socket.create_server(("", plan.master_port)):
        pass


def test_a_pod_that_starts_before_the_master_waits_for_it(port: int) -> None:
    early = pod(port, 1)
    rendezvous = Rendezvous(early)
    late = pod(port, 0)
    second = Rendezvous(late)
    assert rendezvous.join()[1] == second.join()[0]


def test_a_failure_in_one_pod_starts_a_new_generation_for_both(met: list[GangRendezvous]) -> None:
    assert [each.num_nodes_waiting() for each in met] == [0, 0]
    met[1].advance(KILLED)
    assert wait_for_state(met[0], lambda state: state.generation > 1) == State(2, KILLED)
    assert [each.num_nodes_waiting() for each in met] == [1, 1]
    first = met[0].plan
    plans = Rendezvous(*met).join()
    assert plans[0] == plans[1] != first
    assert {each.generation for each in met} == {2}


def test_two_pods_that_fail_at_once_start_one_generation(met: list[GangRendezvous]) -> None:
    for each in met:
        each.advance(FailureReport(FailureKind.POD, "lost a peer"))
    assert met[1].poll().generation == 2


def test_a_second_report_is_merged_until_the_pods_have_met(met: list[GangRendezvous]) -> None:
    met[0].advance(FailureReport(FailureKind.POD, "lost a peer", detected_at=999.0))
    met[1].advance(KILLED)
    assert met[1].poll() == State(2, replace(KILLED, detected_at=999.0))
    Rendezvous(*met).join()
    met[0].advance(FailureReport(FailureKind.HANG, "rank 1 is stopped", 0, 1))
    state = wait_for_state(met[1], lambda state: state.generation > 2)
    assert (state.generation, state.why) == (3, "rank 1 is stopped")


def test_a_lost_peer_is_unexplained_when_the_same_pods_meet_again(met: list[GangRendezvous]) -> None:
    assert met[0].unexplained is None
    met[1].advance(LOST_A_PEER)
    wait_for_state(met[0], lambda state: state.generation == 2)
    Rendezvous(*met).join()
    assert met[0].unexplained == LOST_A_PEER


def test_a_lost_peer_is_explained_by_the_report_of_its_pod(met: list[GangRendezvous]) -> None:
    met[1].advance(LOST_A_PEER)
    met[1].advance(KILLED)
    wait_for_state(met[0], lambda state: state.report is not None and state.report.rank == 2)
    Rendezvous(*met).join()
    assert met[0].unexplained is None


def test_a_lost_peer_is_explained_by_a_new_pod(met: list[GangRendezvous], port: int) -> None:
    met[1].store.disconnect()
    met[0].advance(LOST_A_PEER)
    Rendezvous(met[0], pod(port, 1)).join()
    assert met[0].unexplained is None


def test_a_replacement_pod_starts_a_new_generation(met: list[GangRendezvous], port: int) -> None:
    replacement = pod(port, 1)
    rendezvous = Rendezvous(replacement)
    assert wait_for_state(met[0], lambda state: state.generation > 1).why == "node 1 was replaced"
    Rendezvous(met[0]).join()
    rendezvous.join()
    assert replacement.generation == met[0].generation == 2


MASTER = """
import sys
import time
from megatron_trainer.rendezvous.store import GangStore
from megatron_trainer.rendezvous.state import GenerationPlan
from megatron_trainer.rendezvous.handler import GangRendezvous

master = GangRendezvous(
    GangStore("localhost", int(sys.argv[1]), host=True),
    *("run", 0, 2, "localhost", 60, lambda _state, _new: GenerationPlan(20)),
    *(lambda: None, lambda _text: None),
)
while True:
    master.next_rendezvous()
    print(master.generation, flush=True)
    while not master.num_nodes_waiting():
        time.sleep(0.01)
"""


@contextmanager
def master_process(port: int) -> Iterator[IO[str]]:
    """Run the Master pod as a process that can be killed.

    Yields its output: the number of each generation that it joined.
    """
    with subprocess.Popen(
        [sys.executable, "-c", MASTER, str(port)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        yield process.stdout
        process.kill()


def test_the_generation_counts_on_when_the_master_is_replaced(port: int) -> None:
    survivor = pod(port, 1)
    with master_process(port) as met:
        Rendezvous(survivor).join()
        survivor.advance(KILLED)
        Rendezvous(survivor).join()
        assert [met.readline(), met.readline()] == ["1\n", "2\n"]
    with pytest.raises(StoreLostError):
        survivor.poll()
    replacement = pod(port, 0)
    Rendezvous(replacement, survivor).join()
    assert survivor.generation > 2
    assert replacement.generation == survivor.generation


def test_a_verdict_ends_all_pods_the_same_way(met: list[GangRendezvous]) -> None:
    verdict = Ending(ExitCode.LOSS_NOT_FINITE, "lm loss is nan at iteration 7", 3)
    met[1].end_run(verdict)
    assert wait_for_state(met[0], lambda state: state.verdict is not None).verdict == verdict
    assert Rendezvous(*met).join() == {0: verdict, 1: verdict}


def test_the_first_verdict_stays(met: list[GangRendezvous]) -> None:
    first = Ending(ExitCode.BAD_DATA, "first")
    met[0].end_run(first)
    met[1].end_run(Ending(ExitCode.INTERNAL, "second"))
    assert met[1].poll().verdict == first


def test_a_pod_without_peers_ends_with_peer_lost(port: int) -> None:
    alone = pod(port, 0, timeout=1)
    ending = Rendezvous(alone).join()[0]
    assert ending == Ending(
        ExitCode.PEER_LOST, "timed out after 1 s at the rendezvous: all 2 pods at generation 1"
    )


def test_a_pod_without_a_master_ends_with_peer_lost(port: int) -> None:
    ending = Rendezvous(pod(port, 1, timeout=1)).join()[1]
    assert isinstance(ending, Ending)
    assert ending.code == ExitCode.PEER_LOST
    assert "the Master pod's store" in ending.message


def test_sigterm_at_the_rendezvous_ends_the_wait(port: int) -> None:
    stop = threading.Event()
    terminated = Ending(ExitCode.TERMINATED, "SIGTERM")
    waiting = pod(port, 0, interruption=lambda: terminated if stop.is_set() else None)
    rendezvous = Rendezvous(waiting)
    stop.set()
    ending = rendezvous.join()[0]
    assert isinstance(ending, Ending)
    assert ending.code == ExitCode.TERMINATED


def test_node_0_can_end_the_run_while_it_chooses_the_checkpoint(port: int) -> None:
    done = Ending(ExitCode.OK, "iteration 20 of 20 was already done")

    def prepare(_state: State, _new: bool) -> GenerationPlan:
        raise RunEndedError(done)

    assert Rendezvous(pod(port, 0, prepare=prepare), pod(port, 1)).join() == {0: done, 1: done}


def test_a_replaced_master_of_a_complete_run_does_not_wait_for_pods_that_have_completed(port: int) -> None:
    done = Ending(ExitCode.OK, "iteration 20 of 20 was already done")
    assert Rendezvous(pod(port, 0, timeout=5, completed=lambda _report: done)).join() == {0: done}


def test_a_master_that_lost_its_store_at_the_end_does_not_wait_for_pods_that_have_completed(
    port: int,
) -> None:
    done = Ending(ExitCode.OK, "iteration 20 of 20 was already done")
    complete = threading.Event()
    master = pod(port, 0, timeout=5, completed=lambda _report: done if complete.is_set() else None)
    Rendezvous(master, pod(port, 1)).join()
    complete.set()
    master.store.disconnect()
    assert Rendezvous(master).join() == {0: done}


def test_a_generation_whose_report_asks_for_a_rollback_is_not_taken_for_a_complete_run(
    met: list[GangRendezvous],
) -> None:
    bad_loss = replace(KILLED, failed_iteration=20)
    met[1].advance(bad_loss)
    reports: list[FailureReport | None] = []
    again = replace(met[0], completed=reports.append)
    assert Rendezvous(again, met[1]).join()[0] == again.plan
    assert [report and report.failed_iteration for report in reports] == [20]


def test_pods_that_join_a_complete_run_read_the_verdict(port: int) -> None:
    done = Ending(ExitCode.OK, "iteration 20 of 20 was already done")
    assert Rendezvous(pod(port, 0, completed=lambda _report: done), pod(port, 1)).join() == {0: done, 1: done}


def test_ranks_get_the_address_of_the_master_pod_and_not_its_name(port: int) -> None:
    single = pod(port, 0, nodes=1)
    assert ip_address(single.next_rendezvous().bootstrap_store_info.master_addr).is_loopback


def test_ranks_get_the_name_while_it_does_not_resolve(port: int) -> None:
    single = replace(pod(port, 0, nodes=1), master_addr="no-such-host.invalid")
    assert single.next_rendezvous().bootstrap_store_info.master_addr == "no-such-host.invalid"


def test_a_worker_sends_heartbeats_while_dns_is_slow(
    met: list[GangRendezvous], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Node 0 would start another generation after SILENCE_SECONDS."""
    released, lookup = threading.Event(), socket.getaddrinfo

    def slow(name: str, *arguments: Any, **options: Any) -> Any:
        if name == "slow.invalid":
            released.wait()
        return lookup(name, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    master, worker = met[0], replace(met[1], master_addr="slow.invalid")
    worker.advance(KILLED)
    rendezvous = Rendezvous(master, worker)
    try:
        rendezvous.join()
    finally:
        released.set()
    assert ip_address(rendezvous.addresses[1]).is_loopback
    assert [worker.poll(), master.poll()] == [State(2, KILLED)] * 2


def test_the_state_survives_serialization() -> None:
    for state in (State(1), State(3, KILLED), State(4, KILLED, Ending(ExitCode.USAGE, "flags"), "hangs/x")):
        assert State.loads(state.dumps()) == state
