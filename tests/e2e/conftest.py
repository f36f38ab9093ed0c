"""The two-node cluster with the operator installed from its chart, shared by all end-to-end tests."""

import os
from collections.abc import Iterator

import pytest

from demo.__main__ import OPERATOR_NAMESPACE, connect, install
from demo.kubectl import Cluster

NAMESPACE = "megatron-e2e"


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Everything installed, one namespace for the tests; the cluster stays up for the next layer."""
    if os.geteuid() != 0 and "KUBECONFIG" not in os.environ:
        pytest.skip("needs root (cgroups, network namespaces, mounts), or KUBECONFIG of another cluster")
    cluster = Cluster(connect(), NAMESPACE)
    install(cluster)
    cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    yield cluster
    cluster.kubectl("delete", "namespace", NAMESPACE, "--timeout=180s")
    cluster.helm("uninstall", "megatron-operator", "--namespace", OPERATOR_NAMESPACE, "--wait")
