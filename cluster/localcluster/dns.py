"""CoreDNS, as a process of the host on the bridge: a node that is stopped takes no name service with it."""

from __future__ import annotations

from localcluster.addresses import DNS_DOMAIN, HOST
from localcluster.console import Report
from localcluster.controlplane import ControlPlane
from localcluster.kubectl import Kubectl, Object
from localcluster.processes import http_ok, wait_until

NAME = "coredns"
READY_PORT = 8181


def corefile(kubeconfig: str) -> str:
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
    """What CoreDNS may read: the rules of its own manifest."""
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


def up(plane: ControlPlane, kubectl: Kubectl, report: Report) -> None:
    if plane.processes.running(NAME):
        return
    with report.step("CoreDNS"):
        kubectl.apply(roles())
        path = plane.layout.home / "Corefile"
        path.write_text(corefile(str(plane.component_kubeconfig(NAME))))
        plane.processes.start(NAME, [plane.layout.binary(NAME), "-conf", path])
        wait_until(
            lambda: http_ok(f"http://{HOST}:{READY_PORT}/ready"),
            60,
            "CoreDNS ready",
            lambda: plane.processes.running(NAME),
        )
