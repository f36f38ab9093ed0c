"""What the controllers of JobSet and Kubeflow Trainer need as host processes: ports, rights, resources."""

from __future__ import annotations

import socket

from localcluster.kubectl import Kubectl, Object
from localcluster.processes import wait_until


def free_port() -> int:
    """A TCP port of the host that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_established(kubectl: Kubectl, resource: str) -> None:
    """Wait until the API server serves a custom resource. Raises ClusterError.

    `kubectl wait` fails while it has no condition yet.
    """

    def established() -> bool:
        status = kubectl.get("crd", resource).get("status") or {}
        found = {each["type"]: each["status"] for each in status.get("conditions") or []}
        return found.get("Established") == "True"

    wait_until(established, 60, f"{resource} established")


def rights(user: str, role: Object) -> list[Object]:
    """A ClusterRole with the rules of `role`, and its binding to a user."""
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": user},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": user},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}],
    }
    return [role | {"metadata": {"name": user}}, binding]
