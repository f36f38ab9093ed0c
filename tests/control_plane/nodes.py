"""Nodes whose kubelets KWOK simulates: healthy, lost and returned ones, and pools for one test."""

from localcluster.kwok import COMPLETE
from megatron_operator.manifests.jobset import LABEL_JOB_NAME

from testkit.api_server import Api, Object
from testkit.fake_nodes import NODE_LEASES, fake_node
from testkit.waiting import wait_until


def shared_node(index: int) -> Object:
    """One of the nodes that all tests share, eight to a rack."""
    return fake_node(f"fake-{index}", rack=f"rack-{index // 8}")


def complete_jobs(api: Api, *, of_jobsets: bool) -> None:
    """Set whether KWOK also completes the pods of a JobSet's Jobs, as it does with those of other Jobs."""
    of_others = {"key": f'.metadata.labels["{LABEL_JOB_NAME}"]', "operator": "DoesNotExist"}
    selector = api.get("Stage", None, COMPLETE)["spec"]["selector"]["matchExpressions"]
    selector = [each for each in selector if each != of_others] + ([] if of_jobsets else [of_others])
    api.patch("Stage", None, COMPLETE, {"spec": {"selector": {"matchExpressions": selector}}})


def restore_node(api: Api, name: str) -> None:
    """Re-create a lost shared node and wait for its heartbeat."""
    api.delete("Node", None, name)
    api.delete("Lease", NODE_LEASES, name)
    wait_until(f"node {name} to be gone", lambda: api.find("Node", None, name) is None)
    api.apply(shared_node(int(name.removeprefix("fake-"))))
    wait_until(f"a heartbeat of node {name}", lambda: api.find("Lease", NODE_LEASES, name))


class Pool:
    """Nodes of one test, each with room for one pod of two simulated GPUs."""

    def __init__(self, api: Api, name: str, size: int) -> None:
        """Creates `size` nodes that `selector` selects."""
        self.api = api
        self.selector = {"pool": name}
        self.nodes = [f"{name}-{index}" for index in range(size)]
        for node in self.nodes:
            api.apply(fake_node(node, rack=name, cpu="3", pool=name))

    def cordon(self, node: str) -> None:
        """Schedule no further pods on the node."""
        self.api.patch("Node", None, node, {"spec": {"unschedulable": True}})

    def uncordon(self, node: str) -> None:
        """Schedule pods on the node again."""
        self.api.patch("Node", None, node, {"spec": {"unschedulable": None}})

    def delete(self) -> None:
        """Delete the nodes."""
        for node in self.nodes:
            self.api.delete("Node", None, node)
