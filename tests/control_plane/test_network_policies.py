"""NetworkPolicies of runs on a real API server, where nothing enforces them: whom they select, their life."""

from collections.abc import Callable, Iterator

import pytest
from megatron_operator.manifests.job_backends import stable_name

from testkit.api_server import Object
from testkit.operator_process import OPERATOR_NAMESPACE
from testkit.waiting import wait_until
from tests.control_plane.conftest import PLATFORM
from tests.control_plane.world import World

ENABLED = {"enabled": True, "metricsFrom": ["monitoring"]}


@pytest.fixture
def switch(install: Callable[[str, Object], str], installed: str) -> Iterator[Callable[[bool], None]]:
    """Installs the chart with or without the option; afterwards it is off as before."""
    assert installed

    def set_option(on: bool) -> None:
        options = {"networkPolicies": ENABLED} if on else {}
        install(OPERATOR_NAMESPACE, {"platform": PLATFORM | options})

    set_option(True)
    yield set_option
    set_option(False)


def test_a_run_with_a_policy_trains_and_loses_the_policy_when_the_option_is_switched_off(
    world: World, switch: Callable[[bool], None]
) -> None:
    world.apply("run")
    world.apply("other")
    state = world.train("run", 60, checkpoint=50)
    world.wait_for("other", pods=2)
    world.wait_for_only("NetworkPolicy", "run-pods", "other-pods")
    policy = world.api.get("NetworkPolicy", world.namespace, "run-pods")
    [owner] = policy["metadata"]["ownerReferences"]
    recipe = world.api.get("MegatronRecipe", world.namespace, "run")
    assert (owner["kind"], owner["uid"]) == ("MegatronRecipe", recipe["metadata"]["uid"])

    selected = policy["spec"]["podSelector"]["matchLabels"].items()
    pods = world.api.list("Pod", world.namespace)
    matching = {stable_name(pod) for pod in pods if selected <= pod["metadata"]["labels"].items()}
    assert matching == {"run-master-0", "run-worker-0"}, "of four pods in the namespace"
    assert policy["spec"]["ingress"][0] == {"from": [{"podSelector": policy["spec"]["podSelector"]}]}
    [operators, scrapers] = policy["spec"]["ingress"][1]["from"]
    namespace = world.api.get("Namespace", None, OPERATOR_NAMESPACE)["metadata"]["labels"]
    [expression] = operators["namespaceSelector"]["matchExpressions"]
    assert namespace[expression["key"]] in expression["values"]
    assert scrapers["namespaceSelector"]["matchExpressions"][0]["values"] == ["monitoring"]

    switch(False)
    wait_until("the policies to be deleted", lambda: not world.api.list("NetworkPolicy", world.namespace))
    after = world.train("run", 80, checkpoint=50)
    assert after.job_uid == state.job_uid
    assert after.uid_of("worker-0") == state.uid_of("worker-0"), "the run goes on as it was"


def test_a_run_that_trains_gets_its_policy_when_the_option_is_switched_on(
    world: World, switch: Callable[[bool], None]
) -> None:
    switch(False)
    world.apply("run")
    state = world.train("run", 60, checkpoint=50)
    world.wait_for_only("NetworkPolicy")

    switch(True)
    world.wait_for_only("NetworkPolicy", "run-pods")
    assert world.train("run", 80, checkpoint=50).job_uid == state.job_uid


@pytest.mark.usefixtures("switch")
def test_a_policy_is_gone_with_its_recipe(world: World) -> None:
    world.apply("run")
    world.wait_for("run", pods=2)
    world.wait_for_only("NetworkPolicy", "run-pods")
    world.api.delete("MegatronRecipe", world.namespace, "run")
    world.wait_for_only("NetworkPolicy")
