"""`megatron cluster check`: checks over objects of the API server; the command as a whole."""

import json
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from megatron_operator.api.platform import PlatformConfig
from megatron_operator.cli.cluster_checks import run_checks
from megatron_operator.cli.cluster_objects import ClusterObjects, Finding
from megatron_operator.cli.main import cli

PYTORCHJOBS, RECIPES = "pytorchjobs.kubeflow.org", "megatronrecipes.megatron.training"


def named(name: str, labels: dict[str, str] | None = None, **fields: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "system", "labels": labels or {}}, **fields}


def deployment(
    name: str, *arguments: str, available: int = 1, image: str = "registry/other:1"
) -> dict[str, Any]:
    pod = {"containers": [{"image": image, "args": list(arguments)}]}
    return named(name, spec={"template": {"spec": pod}}, status={"availableReplicas": available})


def gpu_node(name: str, **resources: str) -> dict[str, Any]:
    return named(
        name,
        {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"},
        status={
            "allocatable": {"cpu": "96", "nvidia.com/gpu": "8", **resources},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    )


DEFAULT_CLASS = {
    "metadata": {"name": "shared", "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
    "provisioner": "nfs.csi.k8s.io",
}
COMPLETE = ClusterObjects(
    namespace="research",
    version={"serverVersion": {"major": "1", "minor": "36+", "gitVersion": "v1.36.3"}},
    crds=[named(PYTORCHJOBS), named(RECIPES), named("localqueues.kueue.x-k8s.io")],
    deployments=[deployment("training-operator"), deployment("megatron-operator")],
    storage_classes=[DEFAULT_CLASS],
    nodes=[gpu_node("gpu-0", **{"rdma/hca": "8"}), gpu_node("gpu-1", **{"rdma/hca": "8"})],
    namespaces=[named("research")],
)


def check(objects: ClusterObjects, name: str, platform: PlatformConfig | None = None) -> Finding:
    """The only finding of this check that is not ok, or the only one."""
    found = [each for each in run_checks(objects, platform) if each.check == name]
    bad = [each for each in found if each.state != "ok"]
    assert len(bad or found) == 1, found
    return (bad or found)[0]


def platform(**fields: Any) -> PlatformConfig:
    return PlatformConfig.model_validate(fields)


def test_a_complete_cluster_passes_every_check() -> None:
    assert [each for each in run_checks(COMPLETE, None) if each.state != "ok"] == []
    assert check(COMPLETE, "accelerators").message == "16 nvidia.com/gpu on 2 nodes"
    assert check(COMPLETE, "gang scheduling").message == "Kueue"


@pytest.mark.parametrize(
    ("without", "name", "message"),
    [
        ({"crds": [named(RECIPES)]}, "PyTorchJob", "pytorchjobs.kubeflow.org is not defined"),
        ({"crds": [named(PYTORCHJOBS)]}, "MegatronRecipe", f"{RECIPES} is not defined"),
        ({"deployments": [deployment("megatron-operator")]}, "training-operator", "no Deployment of it"),
        (
            {"deployments": [deployment("training-operator", available=0), deployment("megatron-operator")]},
            "training-operator",
            "system/training-operator has no available replica",
        ),
        ({"deployments": [deployment("training-operator")]}, "megatron-operator", "no Deployment of it"),
        ({"storage_classes": []}, "storage class", "the cluster has none"),
        ({"nodes": [named("cpu-0")]}, "accelerators", "no node has nvidia.com/gpu to allocate"),
        ({"namespaces": []}, "namespace research", "does not exist"),
        ({"version": {"serverVersion": {"major": "1", "minor": "28"}}}, "Kubernetes", "the API server is"),
    ],
)  # fmt: skip
def test_what_every_run_needs_is_missing_with_a_fix(without: dict[str, Any], name: str, message: str) -> None:
    found = check(replace(COMPLETE, **without), name)
    assert found.state == "missing"
    assert found.message.startswith(message)
    assert found.fix


def test_an_operator_is_found_by_its_image_under_another_name() -> None:
    other = deployment("kubeflow-trainer-v1", image="docker.io/kubeflow/training-operator:v1-abc")
    found = check(
        replace(COMPLETE, deployments=[other, deployment("megatron-operator")]), "training-operator"
    )
    assert (found.state, found.message) == ("ok", "system/kubeflow-trainer-v1, available replicas: 1")


def test_the_web_page_which_has_the_operators_image_is_not_the_operator() -> None:
    image = "registry/megatron-operator:1"
    page = deployment("megatron-ui", image=image)
    page["metadata"]["labels"] = {"app.kubernetes.io/name": "megatron-ui"}
    others = [page, deployment("training-operator")]
    found = check(replace(COMPLETE, deployments=others), "megatron-operator")
    assert (found.state, found.message[:19]) == ("missing", "no Deployment of it")
    dead = deployment("megatron-operator", available=0, image=image)
    found = check(replace(COMPLETE, deployments=[*others, dead]), "megatron-operator")
    assert (found.state, found.message) == ("missing", "system/megatron-operator has no available replica")


def test_volumes_of_one_node_and_a_missing_default_are_warnings() -> None:
    disk = {**DEFAULT_CLASS, "provisioner": "ebs.csi.aws.com"}
    found = check(replace(COMPLETE, storage_classes=[disk]), "storage class")
    assert (found.state, found.fix) == ("warning", "for runs of several nodes use EFS or FSx for Lustre")
    found = check(
        replace(COMPLETE, storage_classes=[{**DEFAULT_CLASS, "metadata": {"name": "nfs"}}]), "storage class"
    )
    assert found.state == "warning"
    assert found.message == "none is the default, and no platform file names one"


def test_a_storage_class_that_the_platform_names_must_exist() -> None:
    found = check(COMPLETE, "storage class", platform(checkpoint={"storageClassName": "lustre"}))
    assert (found.state, found.message) == ("missing", "the platform names lustre; the cluster has shared")
    assert check(COMPLETE, "storage class", platform(checkpoint={"storageClassName": "shared"})).state == "ok"


def test_the_nodes_are_compared_with_the_profiles_of_the_platform() -> None:
    labels = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
    fits = platform(accelerators={"h100": {"nodeLabels": labels}})
    assert check(COMPLETE, "accelerators h100", fits).message == "16 nvidia.com/gpu on 2 nodes"
    wrong = platform(accelerators={"h100": {"nodeLabels": {"pool": "gpu"}}})
    found = check(COMPLETE, "accelerators h100", wrong)
    assert (found.state, found.message) == ("missing", "no node has the labels pool=gpu")
    other = platform(accelerators={"h100": {"nodeLabels": labels, "resourceName": "example.com/gpu"}})
    assert check(COMPLETE, "accelerators h100", other).message == "no node has example.com/gpu to allocate"


def test_nodes_that_take_no_pods_are_not_counted() -> None:
    cordoned = gpu_node("gpu-1", **{"rdma/hca": "8"}) | {"spec": {"unschedulable": True}}
    found = check(replace(COMPLETE, nodes=[gpu_node("gpu-0", **{"rdma/hca": "8"}), cordoned]), "accelerators")
    assert (found.state, found.message) == (
        "warning",
        "8 nvidia.com/gpu on 1 node; not ready or cordoned: gpu-1",
    )


@pytest.mark.parametrize(
    "file",
    [
        None,
        platform(accelerators={"h100-sxm": {}}),
        platform(accelerators={"h100-sxm": {"perNode": 8}}),
    ],
    ids=["no-platform", "perNode-from-the-nodes", "perNode-of-the-profile"],
)
def test_a_node_with_fewer_accelerators_than_the_others_of_its_kind_is_a_warning_with_its_name(
    file: PlatformConfig | None,
) -> None:
    nodes = [gpu_node("gpu-0"), gpu_node("gpu-1", **{"nvidia.com/gpu": "7"}), gpu_node("gpu-2")]
    for node in nodes:
        node["metadata"]["labels"]["nvidia.com/gpu.count"] = node["status"]["allocatable"]["nvidia.com/gpu"]
    found = check(replace(COMPLETE, nodes=nodes), "accelerators h100-sxm", file)
    assert (found.state, found.message) == ("warning", "fewer than the 8 nvidia.com/gpu of a node: gpu-1 (7)")


def test_nodes_of_which_none_takes_jobs_without_accelerators_are_a_warning_with_the_field() -> None:
    taint = {"key": "nvidia.com/gpu", "effect": "NoSchedule"}
    tainted = replace(COMPLETE, nodes=[each | {"spec": {"taints": [taint]}} for each in COMPLETE.nodes or ()])
    found = check(tainted, "nodes for CPU Jobs")
    assert (found.state, found.message) == (
        "warning",
        "no node takes pods of the Jobs that prepare data and convert weights; there are taints "
        "nvidia.com/gpu",
    )
    assert "tolerations of cpuJobs" in found.fix
    toleration = {"key": "nvidia.com/gpu", "operator": "Exists"}
    tolerated = platform(cpuJobs={"tolerations": [toleration]})
    elsewhere = platform(cpuJobs={"tolerations": [toleration], "nodeSelector": {"pool": "cpu"}})
    assert "nodes for CPU Jobs" not in {each.check for each in run_checks(tainted, tolerated)}
    assert check(tainted, "nodes for CPU Jobs", elsewhere).state == "warning"


def test_gpus_without_or_with_an_unknown_label_are_warnings() -> None:
    bare = gpu_node("gpu-0")
    bare["metadata"]["labels"] = {}
    found = check(replace(COMPLETE, nodes=[bare]), "GPU labels")
    assert (found.state, found.message) == (
        "warning",
        "1 of 1 nodes with GPUs have no nvidia.com/gpu.product",
    )
    bare["metadata"]["labels"] = {"nvidia.com/gpu.product": "Unheard-Of"}
    assert check(replace(COMPLETE, nodes=[bare]), "GPU labels").message.startswith("Unheard-Of: not known")


def test_several_gpu_nodes_without_rdma_are_a_warning_and_a_requested_resource_is_required() -> None:
    plain = replace(COMPLETE, nodes=[gpu_node("gpu-0"), gpu_node("gpu-1")])
    assert check(plain, "RDMA").state == "warning"
    asked = platform(accelerators={"h100": {"extraResources": {"vpc.amazonaws.com/efa": "32"}}})
    found = check(plain, "RDMA", asked)
    assert (found.state, found.message) == (
        "missing",
        "the platform requests vpc.amazonaws.com/efa; no node has it",
    )
    of_a_thousand = replace(COMPLETE, nodes=[gpu_node("gpu-0", **{"vpc.amazonaws.com/efa": "1k"})])
    assert check(of_a_thousand, "RDMA", asked).state == "ok"
    one = replace(COMPLETE, nodes=[gpu_node("gpu-0")])
    assert "RDMA" not in [each.check for each in run_checks(one, None)]


def test_restricted_pod_security_needs_a_template_of_the_training_operator() -> None:
    restricted = [named("research", {"pod-security.kubernetes.io/enforce": "restricted"})]
    found = check(replace(COMPLETE, namespaces=restricted), "namespace research")
    assert found.state == "missing"
    assert "--pytorch-init-container-template-file" in found.fix
    with_template = deployment(
        "training-operator", "--pytorch-init-container-template-file=/etc/template.yaml"
    )
    objects = replace(
        COMPLETE, namespaces=restricted, deployments=[with_template, deployment("megatron-operator")]
    )
    assert check(objects, "namespace research").state == "ok"


@pytest.mark.parametrize(
    ("backend", "kinds", "controllers"),
    [
        ("pytorchjob", ["PyTorchJob"], ["training-operator"]),
        ("jobset", ["JobSet"], ["jobset-controller-manager"]),
        ("trainjob", ["TrainJob", "JobSet"], ["trainer-controller-manager", "jobset-controller-manager"]),
    ],
)
def test_what_the_platforms_kind_of_job_needs_is_checked(
    backend: str, kinds: list[str], controllers: list[str]
) -> None:
    nothing = replace(COMPLETE, crds=[], deployments=[])
    found = {each.check: each for each in run_checks(nothing, platform(jobBackend=backend))}
    for name in (*kinds, *controllers):
        assert found[name].state == "missing"
        assert found[name].fix.startswith("kubectl apply --server-side ")
    others = {"PyTorchJob", "JobSet", "TrainJob"} - set(kinds)
    assert others.isdisjoint(found)


@pytest.mark.parametrize(
    ("name", "labels", "image"),
    [
        (
            "jobset-controller-manager",
            {"app.kubernetes.io/name": "deployment", "app.kubernetes.io/part-of": "jobset"},
            "registry.k8s.io/jobset/jobset:v0.10.1",
        ),
        ("jobset-controller-manager", {"app.kubernetes.io/name": "deployment"}, "mirror/controller:1"),
        ("jobset-controller", {"app.kubernetes.io/name": "jobset"}, "mirror/controller:1"),
        ("of-a-team-jobset-controller", {"app.kubernetes.io/name": "jobset"}, "mirror/controller:1"),
        ("of-a-team", {}, "registry.k8s.io/jobset/jobset:v0.10.1"),
    ],
    ids=["manifests of the release", "their mirror", "Helm chart", "Helm release", "by its image"],
)
def test_jobsets_controller_is_found_in_each_way_of_its_installation(
    name: str, labels: dict[str, str], image: str
) -> None:
    controller = deployment(name, image=image)
    controller["metadata"]["labels"] = labels
    objects = replace(
        COMPLETE,
        crds=[named(RECIPES), named("jobsets.jobset.x-k8s.io")],
        deployments=[controller, deployment("megatron-operator")],
    )
    found = check(objects, "jobset-controller-manager")
    assert (found.state, found.message) == ("ok", f"system/{name}, available replicas: 1")


@pytest.mark.parametrize(
    ("crds", "other"),
    [
        (["jobsets.jobset.x-k8s.io"], "jobset"),
        (["jobsets.jobset.x-k8s.io", "trainjobs.trainer.kubeflow.org"], "jobset"),
        (["trainjobs.trainer.kubeflow.org"], None),
        ([], None),
    ],
)
def test_a_missing_kind_of_job_is_answered_with_one_that_the_cluster_has(
    crds: list[str], other: str | None
) -> None:
    objects = replace(COMPLETE, crds=[named(RECIPES), *map(named, crds)])
    findings = run_checks(objects, platform(jobBackend="pytorchjob"))
    found = next(each for each in findings if each.check == "PyTorchJob")
    assert found.state == "missing"
    assert (f"or set jobBackend: {other}" in found.fix) == (other is not None)


@pytest.mark.parametrize(
    ("crds", "gangs", "kind"),
    [
        (["jobsets.jobset.x-k8s.io"], {}, "JobSet"),
        (["jobsets.jobset.x-k8s.io"], {"gangScheduling": {"scheduler": "kubernetes"}}, "JobSet"),
        (["jobsets.jobset.x-k8s.io"], {"gangScheduling": {"scheduler": "coscheduling"}}, "PyTorchJob"),
        (["jobsets.jobset.x-k8s.io", "pytorchjobs.kubeflow.org"], {}, "PyTorchJob"),
        (["trainjobs.trainer.kubeflow.org"], {}, "PyTorchJob"),
    ],
)
def test_a_platform_that_names_no_kind_of_job_needs_what_the_chart_chooses(
    crds: list[str], gangs: dict[str, Any], kind: str
) -> None:
    objects = replace(COMPLETE, crds=[named(RECIPES), *map(named, crds)])
    for found in (run_checks(objects, platform(**gangs)), [] if gangs else run_checks(objects, None)):
        assert {each.check for each in found} & {"PyTorchJob", "JobSet", "TrainJob"} <= {kind}
    assert kind in {each.check for each in run_checks(objects, platform(**gangs))}


@pytest.mark.parametrize("backend", ["jobset", "trainjob"])
def test_pods_of_a_jobset_comply_with_restricted_pod_security(backend: str) -> None:
    restricted = [named("research", {"pod-security.kubernetes.io/enforce": "restricted"})]
    found = run_checks(replace(COMPLETE, namespaces=restricted), platform(jobBackend=backend))
    assert next(each.state for each in found if each.check == "namespace research") == "ok"


def test_what_may_not_be_read_is_unknown_with_the_reason() -> None:
    objects = replace(COMPLETE, nodes=None, refused={"nodes": '(Forbidden): nodes is forbidden: User "u"'})
    found = check(objects, "accelerators")
    assert (found.state, found.message) == ("unknown", '(Forbidden): nodes is forbidden: User "u"')


KUBECTL = """#!/bin/sh
case "$*" in
    *version*) file=version ;;
    *"config view"*) file=config ;;
    *"get crd"*) file=crds ;;
    *"get deployments"*) file=deployments ;;
    *"get storageclasses"*) file=storage_classes ;;
    *"get nodes"*) file=nodes ;;
    *"get namespace"*) file=namespaces ;;
esac
cat {folder}/$file 2>/dev/null && exit 0
echo "Error from server (Forbidden): $file is forbidden" >&2
exit 1
"""


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of the answers of a fake kubectl: those of a complete cluster."""
    program = tmp_path / "kubectl"
    program.write_text(KUBECTL.format(folder=tmp_path))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    (tmp_path / "version").write_text(json.dumps(COMPLETE.version))
    (tmp_path / "config").write_text(json.dumps({"contexts": [{"context": {"namespace": "research"}}]}))
    for name in ("crds", "deployments", "storage_classes", "nodes"):
        (tmp_path / name).write_text(json.dumps({"items": getattr(COMPLETE, name)}))
    (tmp_path / "namespaces").write_text(json.dumps(COMPLETE.namespaces[0] if COMPLETE.namespaces else {}))
    return tmp_path


def megatron(*words: str, columns: int | None = None) -> Result:
    env = {"COLUMNS": None if columns is None else str(columns)}
    return CliRunner().invoke(cli, words, env=env, catch_exceptions=False)


@pytest.mark.usefixtures("cluster")
def test_a_cluster_that_has_everything_exits_with_0() -> None:
    result = megatron("cluster", "check")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines()[-1] == "nothing required is missing"
    assert "missing  " not in result.stdout


def test_a_missing_requirement_exits_with_1_and_is_printed_with_its_fix(cluster: Path) -> None:
    (cluster / "crds").write_text("")
    result = megatron("cluster", "check")
    assert result.exit_code == 1
    assert (
        "missing  PyTorchJob\n         pytorchjobs.kubeflow.org is not defined\n         -> kubectl apply"
        in (result.stdout)
    )
    assert result.stdout.splitlines()[-1] == "missing: 2"
    printed = json.loads(megatron("cluster", "check", "-o", "json").stdout)
    assert printed["ready"] is False
    assert {"check", "state", "message", "fix"} == set(printed["checks"][0])


@pytest.mark.parametrize("columns", [80, 120])
def test_the_report_fits_the_terminal(columns: int, cluster: Path) -> None:
    (cluster / "deployments").unlink()
    lines = megatron("cluster", "check", columns=columns).stdout.splitlines()
    assert "unknown  training-operator" in lines
    assert max(map(len, lines)) <= columns or any(
        "github.com" in line for line in lines if len(line) > columns
    )


def test_a_cluster_that_cannot_be_reached_is_an_error(cluster: Path) -> None:
    (cluster / "version").unlink()
    result = megatron("cluster", "check")
    assert result.exit_code == 2
    assert result.stderr.startswith("kubectl version: ")
