"""The report of a place in a gang is that of each pod which takes the place, whatever its name."""

import json
from collections.abc import Iterator
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from testkit.fake_trainers import FakeProgressServer


@pytest.fixture
def server() -> Iterator[FakeProgressServer]:
    server = FakeProgressServer()
    yield server
    server.stop()


def iteration_of(server: FakeProgressServer, pod: str, namespace: str = "team") -> int | None:
    """The iteration that a pod reports; None where it does not answer."""
    try:
        with urlopen(server.url.format(namespace=namespace, pod=pod)) as answer:
            return int(json.load(answer)["iteration"])
    except HTTPError:
        return None


@pytest.mark.parametrize("pod", ["run-worker-0", "run-worker-0-0-x7k2p", "run-worker-0-0-abcde"])
def test_pods_of_a_place_have_its_report(server: FakeProgressServer, pod: str) -> None:
    server.set_report("team", "run-worker-0", iteration=5)
    assert iteration_of(server, pod) == 5


@pytest.mark.parametrize("pod", ["run-worker-1", "run-worker-1-0-x7k2p", "run-master-0", "run-worker-0-0"])
def test_pods_of_other_places_have_none(server: FakeProgressServer, pod: str) -> None:
    server.set_report("team", "run-worker-0", iteration=5)
    assert iteration_of(server, pod) is None


def test_pods_of_other_namespaces_have_none(server: FakeProgressServer) -> None:
    server.set_report("team", "run-worker-0", iteration=5)
    assert iteration_of(server, "run-worker-0", namespace="other") is None
