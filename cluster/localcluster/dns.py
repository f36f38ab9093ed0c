"""CoreDNS as a host process on the bridge, so that name service survives a node that is stopped."""

from __future__ import annotations

from localcluster.addresses import DNS_DOMAIN, HOST
from localcluster.console import Console
from localcluster.controlplane import ControlPlane
from localcluster.kubectl import Kubectl, Object
from localcluster.processes import http_ok, wait_until

NAME = "coredns"
READY_PORT = 8181


def corefile(kubeconfig: str) -> str:
    """CoreDNS' configuration."""
    return f""".:53 {{
    bind {HOST}
    errors
    ready {HOST}:{READY_PORT}
    cache 5
    kubernetes {DNS_DOMAIN} {{
        kubeconfig {kubeconfig}
        pods insecure
    }}
}}
"""


def roles() -> list[Object]:
    """The RBAC rules of CoreDNS' own manifest."""
    rule = {"verbs": ["list", "watch"]}
    return [
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRole",
            "metadata": {"name": "system:coredns"},
            "rules": [
                {**rule, "apiGroups": [""], "resources": ["services", "pods", "namespaces"]},
                {**rule, "apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"]},
            ],
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": "system:coredns"},
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": "ClusterRole",
                "name": "system:coredns",
            },
            "subjects": [{"kind": "ServiceAccount", "name": "coredns", "namespace": "kube-system"}],
        },
    ]


def up(plane: ControlPlane, kubectl: Kubectl, console: Console) -> None:
    """Start CoreDNS unless it is running, and wait until it is ready. Raises ClusterError."""
    if plane.processes.running(NAME):
        return
    with console.step("CoreDNS"):
        kubectl.apply(roles())
        path = plane.paths.home / "Corefile"
        path.write_text(corefile(str(plane.component_kubeconfig(NAME))))
        plane.processes.start(NAME, [plane.paths.binary(NAME), "-conf", path])
        wait_until(
            lambda: http_ok(f"http://{HOST}:{READY_PORT}/ready"),
            60,
            "CoreDNS ready",
            lambda: plane.processes.running(NAME),
        )
