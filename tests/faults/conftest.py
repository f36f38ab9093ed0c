"""The local two-node cluster with the operator installed, and the runs into which faults are injected."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from localcluster import Cluster

from testkit.faults.backends import CONTROLLERS, controllers_running
from testkit.installation import connect, installed_namespace
from testkit.kubectl import Kubectl
from testkit.run_pool import ITERATIONS, ITERATIONS_OF_ALL, NAMESPACE, RunPool

ALL = os.environ.get("MEGATRON_FAULTS") == "all"
BACKEND = os.environ.get("MEGATRON_FAULTS_BACKEND", "pytorchjob")
"""The platform's `jobBackend`."""


@pytest.fixture(scope="session")
def kubectl(cluster: Cluster) -> Iterator[Kubectl]:
    """kubectl for the local cluster, which stays up after the tests."""
    if os.geteuid() != 0:
        pytest.skip("needs root: faults are injected into processes, control groups and network namespaces")
    if BACKEND not in CONTROLLERS:
        pytest.fail(f"MEGATRON_FAULTS_BACKEND is {BACKEND!r}; use one of {', '.join(CONTROLLERS)}")
    given = os.environ.get("KUBECONFIG")
    if given and Path(given).resolve() != Cluster().kubeconfig:
        pytest.skip("faults are injected into the local cluster only: unset KUBECONFIG")
    kubeconfig = connect()
    with (
        controllers_running(cluster, BACKEND),
        installed_namespace(Kubectl(kubeconfig, NAMESPACE), BACKEND) as kubectl,
    ):
        yield kubectl


@pytest.fixture(scope="session")
def cluster() -> Cluster:
    """The local cluster as seen from the host."""
    return Cluster(quiet=True)


@pytest.fixture(scope="session")
def runs(kubectl: Kubectl, cluster: Cluster) -> RunPool:
    """The runs, after one undisturbed run whose losses all others must repeat."""
    runs = RunPool(kubectl, cluster, ITERATIONS_OF_ALL if ALL else ITERATIONS, BACKEND)
    runs.record_reference()
    return runs
