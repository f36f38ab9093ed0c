"""The local two-node cluster with the operator installed, and the runs into which faults are injected."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from localcluster import Cluster

from testkit.installation import connect, installed_namespace
from testkit.kubectl import Kubectl
from testkit.run_pool import ITERATIONS, ITERATIONS_OF_ALL, NAMESPACE, RunPool

ALL = os.environ.get("MEGATRON_FAULTS") == "all"


@pytest.fixture(scope="session")
def kubectl() -> Iterator[Kubectl]:
    """kubectl for the local cluster, which stays up after the tests."""
    if os.geteuid() != 0:
        pytest.skip("needs root: faults are injected into processes, control groups and network namespaces")
    given = os.environ.get("KUBECONFIG")
    if given and Path(given).resolve() != Cluster().kubeconfig:
        pytest.skip("faults are injected into the local cluster only: unset KUBECONFIG")
    with installed_namespace(Kubectl(connect(), NAMESPACE)) as kubectl:
        yield kubectl


@pytest.fixture(scope="session")
def cluster() -> Cluster:
    """The local cluster as seen from the host."""
    return Cluster(quiet=True)


@pytest.fixture(scope="session")
def runs(kubectl: Kubectl, cluster: Cluster) -> RunPool:
    """The runs, after one undisturbed run whose losses all others must repeat."""
    runs = RunPool(kubectl, cluster, ITERATIONS_OF_ALL if ALL else ITERATIONS)
    runs.record_reference()
    return runs
