"""The cluster of the fine-tuning tests, with a model and what it is trained on."""

import gzip
import os
from collections.abc import Iterator

import pytest
from localcluster import Cluster
from localcluster.addresses import HOST
from localcluster.images import BRIDGE_TRAINER

from testkit import object_store
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


@pytest.fixture(scope="session")
def object_storage(kubectl: Kubectl, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """`data.prepare.objectStorage` of a store that has one of the sources of the model with experts."""
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "corpus-reader"}}
    kubectl.apply({**secret, "stringData": object_store.CREDENTIALS})
    names = output_of(kubectl, "read-names", "cat", "/data/texts/names.jsonl")
    with object_store.running(tmp_path_factory.mktemp("object-storage") / "s3", HOST) as store:
        store.put("names.jsonl.gz", gzip.compress(names.encode()))
        yield {"secretName": "corpus-reader", "endpointUrl": store.endpoint}
