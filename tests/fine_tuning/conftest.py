"""The cluster of the fine-tuning tests, with a model and what it is trained on."""

import os
from collections.abc import Iterator

import pytest
from localcluster import Cluster
from localcluster.images import BRIDGE_TRAINER

from testkit.installation import DATA_CLAIM, connect, installed_namespace
from testkit.kubectl import Kubectl
from tests.fine_tuning.pods import output_of, scripts


@pytest.fixture(scope="session")
def kubectl() -> Iterator[Kubectl]:
    """A namespace with a model, questions with answers, and chats."""
    if os.geteuid() != 0:
        pytest.skip("needs root: the local cluster")
    kubeconfig = connect()
    Cluster().images([BRIDGE_TRAINER])
    with installed_namespace(Kubectl(kubeconfig, "fine-tuning")) as kubectl:
        kubectl.apply({**DATA_CLAIM, "metadata": {"name": "weights"}})
        kubectl.apply(scripts())
        output_of(kubectl, "make-model", "python", "/scripts/model_and_answers.py", "/data")
        yield kubectl
