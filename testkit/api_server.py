"""A synchronous client of the API server with all rights."""

import json
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

from kubernetes import config
from megatron_operator.api import json_documents
from megatron_operator.api.labels import STORED_API_VERSION
from urllib3 import Retry

from testkit.errors import ApiError

Object = dict[str, Any]

_ADMISSION = "/apis/admissionregistration.k8s.io/v1"
_PATHS = {
    # The version that a release without v1beta1 serves too.
    "MegatronRecipe": f"/apis/{STORED_API_VERSION}/{{ns}}/megatronrecipes",
    "PyTorchJob": "/apis/kubeflow.org/v1/{ns}/pytorchjobs",
    "JobSet": "/apis/jobset.x-k8s.io/v1alpha2/{ns}/jobsets",
    "TrainJob": "/apis/trainer.kubeflow.org/v1alpha1/{ns}/trainjobs",
    "TrainingRuntime": "/apis/trainer.kubeflow.org/v1alpha1/{ns}/trainingruntimes",
    "Job": "/apis/batch/v1/{ns}/jobs",
    "Pod": "/api/v1/{ns}/pods",
    "Service": "/api/v1/{ns}/services",
    "EndpointSlice": "/apis/discovery.k8s.io/v1/{ns}/endpointslices",
    "PersistentVolumeClaim": "/api/v1/{ns}/persistentvolumeclaims",
    "ConfigMap": "/api/v1/{ns}/configmaps",
    "Secret": "/api/v1/{ns}/secrets",
    "NetworkPolicy": "/apis/networking.k8s.io/v1/{ns}/networkpolicies",
    "Event": "/api/v1/{ns}/events",
    "ResourceQuota": "/api/v1/{ns}/resourcequotas",
    "ServiceAccount": "/api/v1/{ns}/serviceaccounts",
    "Role": "/apis/rbac.authorization.k8s.io/v1/{ns}/roles",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/{ns}/rolebindings",
    "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "CustomResourceDefinition": "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
    "Namespace": "/api/v1/namespaces",
    "Node": "/api/v1/nodes",
    "Lease": "/apis/coordination.k8s.io/v1/{ns}/leases",
    "PodDisruptionBudget": "/apis/policy/v1/{ns}/poddisruptionbudgets",
    "ValidatingAdmissionPolicy": f"{_ADMISSION}/validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": f"{_ADMISSION}/validatingadmissionpolicybindings",
    "MutatingAdmissionPolicy": f"{_ADMISSION}/mutatingadmissionpolicies",
    "MutatingAdmissionPolicyBinding": f"{_ADMISSION}/mutatingadmissionpolicybindings",
    "ValidatingWebhookConfiguration": f"{_ADMISSION}/validatingwebhookconfigurations",
    "PersistentVolume": "/api/v1/persistentvolumes",
    "PodGroup": "/apis/scheduling.x-k8s.io/v1alpha1/{ns}/podgroups",
    "PriorityClass": "/apis/scheduling.k8s.io/v1/priorityclasses",
    "ResourceFlavor": "/apis/kueue.x-k8s.io/v1beta2/resourceflavors",
    "Topology": "/apis/kueue.x-k8s.io/v1beta2/topologies",
    "ClusterQueue": "/apis/kueue.x-k8s.io/v1beta2/clusterqueues",
    "LocalQueue": "/apis/kueue.x-k8s.io/v1beta2/{ns}/localqueues",
    "WorkloadPriorityClass": "/apis/kueue.x-k8s.io/v1beta2/workloadpriorityclasses",
    "Workload": "/apis/kueue.x-k8s.io/v1beta2/{ns}/workloads",
    "ResourceSlice": "/apis/resource.k8s.io/v1/resourceslices",
    "ResourceClaim": "/apis/resource.k8s.io/v1/{ns}/resourceclaims",
    "ResourceClaimTemplate": "/apis/resource.k8s.io/v1/{ns}/resourceclaimtemplates",
    "DeviceClass": "/apis/resource.k8s.io/v1/deviceclasses",
    "DeviceTaintRule": "/apis/resource.k8s.io/v1beta2/devicetaintrules",
    "Stage": "/apis/kwok.x-k8s.io/v1alpha1/stages",
}


_AS_ASKED: Final = Retry(
    total=10,
    connect=False,
    read=False,
    redirect=False,
    other=False,
    status_forcelist=(429,),
    allowed_methods=None,
    raise_on_status=False,
)
"""As each client of Kubernetes: an API server that is busy, or prepares a new custom resource, answers 429,
and when to ask again."""

_TABLE: Final = "application/json;as=Table;g=meta.k8s.io;v=v1"


class Api:
    """Reads and writes objects as plain dicts."""

    def __init__(self, kubeconfig: Path) -> None:
        """Connects with the credentials of `kubeconfig`."""
        self._client = config.new_client_from_config(config_file=str(kubeconfig))  # type: ignore[no-untyped-call]
        self._headers: dict[str, str] = {}
        self._client.update_params_for_auth(self._headers, [], ["BearerToken"], "", "GET", None)
        self.server = str(self._client.configuration.host)
        self.ca_file = str(self._client.configuration.ssl_ca_cert)

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        content_type: str = "application/json",
        accept: str = "application/json",
        **query: str,
    ) -> Any:
        """The decoded JSON answer; an empty dict where there is none.

        Raises ApiError on a status of 400 and above, urllib3's HTTPError when the server is unreachable.
        """
        url = self.server + path + (f"?{urlencode(query)}" if query else "")
        response = self._client.rest_client.pool_manager.request(
            method,
            url,
            body=None if body is None else json.dumps(body),
            headers=self._headers | {"Accept": accept, "Content-Type": content_type},
            timeout=30,
            retries=_AS_ASKED,
        )
        content = json_documents.loads(response.data or b"{}") if response.data[:1] in (b"{", b"") else {}
        if response.status >= 400:
            raise ApiError(response.status, str(content.get("message", response.data[:300])))
        return content

    def path(self, kind: str, namespace: str | None = None, name: str | None = None) -> str:
        """The URL path of a kind, or of one object of it."""
        path = _PATHS[kind].format(ns=f"namespaces/{namespace}" if namespace else "").replace("//", "/")
        return f"{path}/{name}" if name else path

    def _path_of(self, body: Object) -> str:
        """The path of the kind of an object, in the version in which it is written."""
        path = self.path(body["kind"], body["metadata"].get("namespace"))
        return path.replace(STORED_API_VERSION, body["apiVersion"])

    def find(self, kind: str, namespace: str | None, name: str) -> Object | None:
        """The object, or None where there is none."""
        try:
            return dict(self.request("GET", self.path(kind, namespace, name)))
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def get(self, kind: str, namespace: str | None, name: str) -> Object:
        """The object. Raises AssertionError where there is none."""
        found = self.find(kind, namespace, name)
        assert found is not None, f"{kind} {namespace}/{name} does not exist"
        return found

    def column(self, kind: str, namespace: str | None, name: str) -> list[Any]:
        """A column of what `kubectl get` prints, for all objects of a kind; costs less than their list."""
        path = self.path(kind, namespace)
        table = self.request("GET", path, accept=_TABLE, includeObject="None", resourceVersion="0")
        index = [column["name"] for column in table["columnDefinitions"]].index(name)
        return [row["cells"][index] for row in table["rows"]]

    def list(self, kind: str, namespace: str | None = None, **query: str) -> list[Object]:
        """All objects of a kind that match the query, for example `labelSelector`. Raises ApiError."""
        return list(self.request("GET", self.path(kind, namespace), **query)["items"])

    def apply(self, body: Object, manager: str = "tests", **query: str) -> Object:
        """Server-side apply; conflicts are overwritten. Raises ApiError."""
        path = f"{self._path_of(body)}/{body['metadata']['name']}"
        return dict(
            self.request(
                "PATCH",
                path,
                body,
                "application/apply-patch+yaml",
                fieldManager=manager,
                force="true",
                **query,
            )
        )

    def create(self, body: Object, **query: str) -> Object:
        """POST. Raises ApiError with status 409 when the object exists."""
        return dict(self.request("POST", self._path_of(body), body, **query))

    def patch(
        self,
        kind: str,
        namespace: str | None,
        name: str,
        body: Object,
        subresource: str = "",
        manager: str = "",
    ) -> Object:
        """JSON merge patch of an object or its subresource, as the manager of its fields. Raises ApiError."""
        path = self.path(kind, namespace, name) + (f"/{subresource}" if subresource else "")
        path += f"?fieldManager={manager}" if manager else ""
        return dict(self.request("PATCH", path, body, "application/merge-patch+json"))

    def delete(self, kind: str, namespace: str | None, name: str, **options: Any) -> None:
        """Delete an object with DeleteOptions; one that does not exist is no error."""
        try:
            self.request("DELETE", self.path(kind, namespace, name), options or None)
        except ApiError as error:
            if error.status != 404:
                raise
