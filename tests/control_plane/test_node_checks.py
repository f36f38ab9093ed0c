"""Nodes that the operator cordoned are checked by a Job and uncordoned when it passes."""

import time
from collections.abc import Callable, Iterator

import pytest
from megatron_operator.api.labels import (
    ANNOTATION_NODE_CHECK,
    FIELD_MANAGER,
    LABEL_CORDONED_AT,
    LABEL_NODE_CHECK,
)
from megatron_operator.api.recovery_status import NodeEvidence
from megatron_operator.api.times import timestamp
from megatron_operator.lifecycle.cordoning import cordon_patch
from megatron_operator.manifests import node_check

from testkit.api_server import Api, Object
from testkit.errors import ApiError
from testkit.fake_nodes import fake_node
from testkit.fake_trainers import terminate_container
from testkit.operator_process import OPERATOR_NAMESPACE, OperatorProcess, write_kubeconfig
from testkit.waiting import wait_until
from tests.control_plane.conftest import PLATFORM
from tests.control_plane.gateway import Gateway
from tests.control_plane.test_admission_policy import job

GOOD, BAD = "checked-good", "checked-bad"


@pytest.fixture
def nodes(api: Api) -> Iterator[None]:
    for name in (GOOD, BAD):
        api.apply(fake_node(name, rack="checked"))
    yield
    for name in (GOOD, BAD):
        api.delete("Node", None, name)


@pytest.fixture
def token(install: Callable[[str, Object], str], installed: str) -> Iterator[str]:
    """Of the operator's account, where the platform asks for checks."""
    assert installed
    yield install(
        OPERATOR_NAMESPACE, {"platform": PLATFORM | {"badNodes": {"cordon": True, "uncordonByCheck": True}}}
    )
    install(OPERATOR_NAMESPACE, {"platform": PLATFORM})


def cordon(api: Api, name: str) -> None:
    """What the operator did an hour ago."""
    at = time.time() - 3600
    evidence = NodeEvidence(evidence="DeviceMemory", cause="ECC", time=timestamp(at))
    patch = cordon_patch(api.get("Node", None, name), evidence, at)
    assert patch is not None
    api.patch("Node", None, name, patch, manager=FIELD_MANAGER)


def admitted(api: Api, namespace: str) -> bool:
    """Whether a check may be created there."""
    try:
        api.create(job(namespace, "node-check-x", {LABEL_NODE_CHECK: "x"}), dryRun="All")
    except ApiError as error:
        if error.status != 403:
            raise
        return False
    return True


def pod_on(api: Api, node: str) -> Object | None:
    """The pod of the check, once it runs: KWOK has then written its status, and writes it no more."""
    running = f"spec.nodeName={node},status.phase=Running"
    pods = api.list("Pod", OPERATOR_NAMESPACE, fieldSelector=running)
    return next((pod for pod in pods if LABEL_NODE_CHECK in pod["metadata"]["labels"]), None)


@pytest.mark.usefixtures("nodes")
def test_a_node_that_passes_its_check_is_uncordoned_and_one_that_fails_is_not(
    api: Api,
    operator: OperatorProcess,
    token: str,
    gateway: Gateway,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    assert operator
    write_kubeconfig(config := tmp_path_factory.mktemp("account") / "operator", gateway.url, token)
    account = Api(config)
    # The API server compiles a policy a moment after it was changed.
    wait_until("the policy to admit checks", lambda: admitted(account, OPERATOR_NAMESPACE))
    assert not admitted(account, "default"), "only in the operator's namespace"
    for name in (GOOD, BAD):
        cordon(api, name)
    for name, code in ((GOOD, 0), (BAD, 138)):
        pod = wait_until(f"a pod on cordoned {name}", lambda name=name: pod_on(api, name))
        assert pod["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "8"}
        terminate_container(api, OPERATOR_NAMESPACE, pod["metadata"]["name"], code, "a wrong product")
    wait_until(f"{GOOD} to be uncordoned", lambda: "unschedulable" not in api.get("Node", None, GOOD)["spec"])

    def result(name: str) -> str:
        return str(api.get("Node", None, name)["metadata"]["annotations"][ANNOTATION_NODE_CHECK])

    wait_until(f"the result of {BAD}", lambda: "a wrong product" in result(BAD))
    bad = api.get("Node", None, BAD)
    assert bad["spec"]["unschedulable"]
    assert LABEL_CORDONED_AT in bad["metadata"]["labels"]
    for name in (GOOD, BAD):
        wait_until(
            f"the check of {name} to be gone",
            lambda name=name: api.find("Job", OPERATOR_NAMESPACE, node_check.name(name)) is None,
        )
