"""Two replicas of the operator: one acts, whatever happens to the other."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from megatron_operator.api.times import seconds

from testkit.api_server import Object
from testkit.operator_process import OPERATOR_NAMESPACE, OperatorProcess, write_kubeconfig
from testkit.waiting import wait_until
from tests.control_plane.gateway import Gateway
from tests.control_plane.world import World

LEASE = "megatron-operator-leader"
FREEZE = 60.0
LONG_LEASE = ("--leader-elect-lease-duration=240", "--leader-elect-renew-deadline=120")


@dataclass
class Replica:
    """One operator process with a connection of its own."""

    process: OperatorProcess
    gateway: Gateway

    def accepted(self, namespace: str = "") -> list[tuple[str, str]]:
        """Its writes that the API server has carried out: in a namespace, or all."""
        inside = f"/namespaces/{namespace}/" if namespace else "/"
        return [
            (method, path) for method, path, status in self.gateway.answers if inside in path and status < 400
        ]


class Pair:
    """Two replicas that elect their leader."""

    def __init__(self, world: World, replicas: list[Replica]) -> None:
        self.world, self.replicas = world, replicas

    @property
    def lease(self) -> Object:
        """The Lease's spec; empty before the first election."""
        found = self.world.api.find("Lease", OPERATOR_NAMESPACE, LEASE)
        return {} if found is None else dict(found["spec"])

    def leader(self) -> Replica | None:
        """The replica whose log has the identity of the holder."""
        holder = self.lease.get("holderIdentity")
        if not holder:
            return None
        return next((each for each in self.replicas if f"{holder} is the leader" in each.process.log()), None)

    def wait_for_leader(self) -> tuple[Replica, Replica]:
        """The leader and the other one."""
        leader = wait_until("a leader", self.leader)
        return leader, next(each for each in self.replicas if each is not leader)

    def wait_for_takeover(self, by: Replica) -> Object:
        """The Lease once this replica is the leader."""
        wait_until("the other replica to lead", lambda: self.leader() is by)
        return self.lease


@pytest.fixture
def lease_options() -> Sequence[str]:
    """Options of the replicas' leader election besides its Lease; those of a test replace them."""
    return ()


@pytest.fixture
def pair(world: World, installed: str, tmp_path: Path, lease_options: Sequence[str]) -> Iterator[Pair]:
    """Two replicas, and no other operator."""
    world.operator.stop()
    world.api.delete("Lease", OPERATOR_NAMESPACE, LEASE)
    replicas = []
    for name in ("one", "two"):
        gateway = Gateway(world.api.server, world.api.ca_file)
        write_kubeconfig(tmp_path / name, gateway.start(), installed)
        options = [
            f"--namespace={OPERATOR_NAMESPACE}",
            "--node-discovery",
            *world.backend.operator_options,
            "--leader-elect",
            f"--leader-elect-resource-name={LEASE}",
            *lease_options,
        ]
        process = OperatorProcess(tmp_path / name, tmp_path / f"{name}.log", world.trainers.url, options)
        process.start()
        replicas.append(Replica(process, gateway))
    yield Pair(world, replicas)
    for replica in replicas:
        replica.process.kill()
        replica.gateway.stop()
    world.operator.ensure()


def age_at_takeover(before: Object, after: Object) -> float:
    """Seconds from the last renewal of one leader to the beginning of the next."""
    renewed, acquired = seconds(before["renewTime"]), seconds(after["acquireTime"])
    assert renewed is not None
    assert acquired is not None
    return acquired - renewed


def test_a_standby_writes_nothing(world: World, pair: Pair) -> None:
    leader, standby = pair.wait_for_leader()
    world.apply("run")
    world.train("run", 10, checkpoint=5)
    assert leader.accepted(world.namespace)
    # Both may try to create the Lease; the API server refuses the second.
    assert standby.accepted() == []


def test_a_killed_leader_is_replaced_and_the_run_goes_on(world: World, pair: Pair) -> None:
    leader, standby = pair.wait_for_leader()
    world.apply("run")
    pods = world.train("run", 10, checkpoint=5).pod_uids
    leader.process.kill()
    before = pair.lease
    after = pair.wait_for_takeover(standby)
    assert age_at_takeover(before, after) >= before["leaseDurationSeconds"]
    assert after["leaseTransitions"] == before["leaseTransitions"] + 1
    assert world.train("run", 20, checkpoint=15).pod_uids == pods
    world.terminate("run-worker-0", 138)
    world.wait_for("run", conditions={"Recovering": "PodsReplaced"})


def test_a_frozen_leader_overwrites_nothing_when_it_continues(world: World, pair: Pair) -> None:
    """A status of it was on its way when it froze, and arrives after 60 s."""
    leader, standby = pair.wait_for_leader()
    world.apply("run")
    world.train("run", 10, checkpoint=5)
    leader.gateway.held_path = "/megatronrecipes/run/status"
    world.report("run", iteration=11, checkpointIteration=10)
    wait_until("a status write to be on its way", leader.gateway.holding.is_set)
    frozen = time.monotonic()
    leader.process.freeze()
    before = pair.lease
    after = pair.wait_for_takeover(standby)
    assert age_at_takeover(before, after) >= before["leaseDurationSeconds"]
    world.train("run", 20, checkpoint=15)
    time.sleep(max(0.0, FREEZE - (time.monotonic() - frozen)))  # part of the fault
    leader.gateway.answers.clear()
    leader.process.resume()
    leader.gateway.held_path = None
    wait_until("the frozen leader to end", lambda: leader.process.exit_code == 1)
    wait_until("its write to be answered", lambda: leader.gateway.answers)
    assert leader.accepted(world.namespace) == []
    assert [status for *_, status in leader.gateway.answers] == [409]
    assert "the leader's lease is lost" in leader.process.log()
    assert world.wait_for("run").status["progress"]["iteration"] == 20
    leader.process.start()
    world.train("run", 30, checkpoint=25)
    assert leader.accepted(world.namespace) == [], "it stands by"


def test_a_leader_that_is_cut_off_ends_before_another_one_acts(world: World, pair: Pair) -> None:
    leader, standby = pair.wait_for_leader()
    world.apply("run")
    world.train("run", 10, checkpoint=5)
    leader.gateway.cut_off()
    before = pair.lease
    world.report("run", iteration=11, checkpointIteration=10)
    after = pair.wait_for_takeover(standby)
    assert age_at_takeover(before, after) >= before["leaseDurationSeconds"]
    wait_until("the leader that was cut off to end", lambda: leader.process.exit_code == 1)
    world.train("run", 20, checkpoint=15)
    leader.gateway.cut = False
    leader.process.start()
    world.train("run", 30, checkpoint=25)
    accepted = [path for _, path in leader.accepted(world.namespace) if "megatronrecipes/run" in path]
    assert accepted == [], "what it had sent is refused when it arrives"


@pytest.mark.parametrize("lease_options", [LONG_LEASE], ids=["a lease that outlasts the test"])
def test_a_leader_that_is_terminated_hands_over_at_once(world: World, pair: Pair) -> None:
    leader, standby = pair.wait_for_leader()
    world.apply("run")
    world.train("run", 10, checkpoint=5)
    leader.process.stop()
    assert "lease released" in leader.process.log(), "the other need not wait for the expiry"
    pair.wait_for_takeover(standby)
    assert leader.process.exit_code == 0
    world.train("run", 20, checkpoint=15)


def test_helm_test_finds_the_leader_with_the_rights_of_the_operator(
    pair: Pair, installed: str, tmp_path: Path
) -> None:
    """The command of the chart's test pod."""
    kubeconfig = tmp_path / "helm-test"
    write_kubeconfig(kubeconfig, pair.world.api.server, installed, pair.world.api.ca_file)
    command = [
        sys.executable, "-m", "megatron_operator.controller.leader_check",
        f"--namespace={OPERATOR_NAMESPACE}", f"--lease={LEASE}",
    ]  # fmt: skip
    environment = os.environ | {"KUBECONFIG": str(kubeconfig)}
    leader, _ = pair.wait_for_leader()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"{pair.lease['holderIdentity']} leads, and recipes can be read"
    assert leader.process.running()
    command[-1] = "--lease=another"
    refused = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert refused.returncode == 1
    assert 'leases.coordination.k8s.io "another" is forbidden' in refused.stderr
