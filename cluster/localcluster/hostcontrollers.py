"""What controllers need as host processes: rights, certificates, and the deletion of their objects."""

from __future__ import annotations

import base64

from localcluster.errors import ClusterError
from localcluster.kubectl import Kubectl, Object
from localcluster.pki import Authority
from localcluster.processes import wait_until


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


def delete_all(kubectl: Kubectl, resource: str) -> None:
    """Delete all objects of a resource, with finalizers that only a process that has ended would remove."""
    if not kubectl.exists("crd", resource):
        return
    for each in kubectl.get(resource, "--all-namespaces")["items"]:
        metadata = each["metadata"]
        namespace = metadata.get("namespace")
        where = (resource, metadata["name"], *(("--namespace", namespace) if namespace else ()))
        try:
            kubectl.run("patch", *where, "--type=merge", '--patch={"metadata":{"finalizers":null}}')
        except ClusterError:
            # With its namespace it may be gone by now.
            if kubectl.exists(*where):
                raise
        kubectl.run("delete", *where, "--ignore-not-found")


def certificates(authority: Authority, name: str, namespace: str) -> Object:
    """The Secret with an authority's certificate and key, and its certificate `tls` with that key."""
    files = {
        f"{each}.{kind}": authority.directory / f"{each}.{kind}"
        for each in ("ca", "tls")
        for kind in ("crt", "key")
    }
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": namespace},
        "data": {key: base64.b64encode(path.read_bytes()).decode() for key, path in files.items()},
    }
