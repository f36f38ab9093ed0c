"""Who may connect to the pods of a run where the platform wants NetworkPolicies."""

from typing import Any

from megatron_operator.api.platform import NetworkPolicies
from megatron_operator.manifests.metadata import ROLE_PREPARE, ROLE_TRAINER, Owner
from megatron_operator.manifests.network_policy import network_policy

RUN = Owner("run", "research", "uid")
OPTIONS = NetworkPolicies(enabled=True, operator_namespace="training", metrics_from=["monitoring"])


def policy(options: NetworkPolicies = OPTIONS) -> dict[str, Any]:
    made = network_policy(RUN, options)
    assert made is not None
    return made


def test_a_run_has_no_policy_unless_the_platform_wants_one(run: Any) -> None:
    assert network_policy(RUN, NetworkPolicies()) is None
    assert run("tiny-gpt").build().network_policy is None


def test_all_pods_of_the_run_are_selected_and_reach_each_other_on_every_port() -> None:
    spec = policy()["spec"]
    for role in (ROLE_TRAINER, ROLE_PREPARE):
        assert spec["podSelector"]["matchLabels"].items() <= RUN.labels(role).items()
    assert {"from": [{"podSelector": spec["podSelector"]}]} in spec["ingress"]


def test_pods_of_another_run_are_not_admitted() -> None:
    selected = policy()["spec"]["podSelector"]["matchLabels"]
    other = Owner("other", "research", "uid").labels(ROLE_TRAINER)
    assert not selected.items() <= other.items()


def test_the_operator_and_the_metrics_scraper_reach_the_progress_port_alone() -> None:
    [_, readers] = policy()["spec"]["ingress"]
    assert readers["ports"] == [{"protocol": "TCP", "port": 8432}]
    namespaces = [peer["namespaceSelector"]["matchExpressions"][0]["values"] for peer in readers["from"]]
    assert namespaces == [["training"], ["monitoring"]]
    assert readers["from"][0]["podSelector"] == {
        "matchLabels": {"app.kubernetes.io/name": "megatron-operator"}
    }


def test_without_a_scraper_only_the_operator_reads_the_progress() -> None:
    [_, readers] = policy(NetworkPolicies(enabled=True))["spec"]["ingress"]
    assert len(readers["from"]) == 1


def test_what_pods_connect_to_is_left_open() -> None:
    assert policy()["spec"]["policyTypes"] == ["Ingress"]
