"""The pods of the baselines, made from this project's own."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from bench.recovery_systems import ByExitCode, GangAnew, OnFailure, Torchrun
from testkit.kubectl import Cluster

TEMPLATE: dict[str, Any] = {
    "metadata": {"labels": {"run": "operator"}},
    "spec": {
        "affinity": {"nodeAffinity": {}},
        "containers": [
            {
                "name": "pytorch",
                "command": ["megatron-train"],
                "args": [
                    *("--save", "/checkpoints/operator", "--load", "/checkpoints/operator"),
                    *("--exit-signal-handler", "--data-cache-path", "/checkpoints/operator/data-cache"),
                ],
                "env": [],
                "volumeMounts": [],
            }
        ],
        "volumes": [{"name": "checkpoints", "persistentVolumeClaim": {"claimName": "checkpoints"}}],
    },
}


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    kubeconfig = {
        "current-context": "none",
        "contexts": [{"name": "none", "context": {"cluster": "none", "user": "none"}}],
        "clusters": [{"name": "none", "cluster": {"server": "http://127.0.0.1:1"}}],
        "users": [{"name": "none", "user": {}}],
    }
    file = tmp_path / "kubeconfig"
    file.write_text(yaml.safe_dump(kubeconfig))
    return Cluster(file, "bench")


@pytest.mark.parametrize(
    ("kind", "restarts"), [(OnFailure, 0), (ByExitCode, 0), (Torchrun, 100), (GangAnew, 0)]
)
def test_torchrun_takes_the_place_of_the_launcher(
    kind: type[Torchrun | OnFailure], restarts: int, cluster: Cluster
) -> None:
    system = kind(cluster, "plain", TEMPLATE, Path("/volume"))
    container = system.pod_template()["spec"]["containers"][0]
    assert container["args"] == [
        *("torchrun", "--nnodes=2", "--nproc-per-node=2", f"--max-restarts={restarts}"),
        *("--rdzv-backend=c10d", "--rdzv-endpoint=plain-master-0:29500", "--rdzv-id=plain"),
        *("/plain/plain_pretrain.py", "--save", "/checkpoints/plain", "--load", "/checkpoints/plain"),
        *("--data-cache-path", "/checkpoints/plain/data-cache", "--distributed-timeout-minutes", "1"),
    ]
    assert container["command"][:2] == ["sh", "-c"]
    assert system.folder == Path("/volume/plain")


def test_a_job_may_have_its_checkpoints_on_a_volume_of_its_own(cluster: Cluster) -> None:
    job = OnFailure(cluster, "plain", TEMPLATE, Path("/volume"), "small-disk")
    claims = [
        volume["persistentVolumeClaim"]["claimName"]
        for volume in job.pod_template()["spec"]["volumes"]
        if "persistentVolumeClaim" in volume
    ]
    assert claims == ["small-disk"]
    assert TEMPLATE["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"] == "checkpoints"


def test_steps_are_read_on_from_where_they_were_read_before(tmp_path: Path, cluster: Cluster) -> None:
    job = OnFailure(cluster, "plain", TEMPLATE, tmp_path)
    assert job.steps() == []
    job.folder.mkdir()
    file = job.folder / "progress.jsonl"
    line = '{{"iteration": {}, "lmLoss": 2.0, "time": 1.0, "generation": 0}}\n'
    file.write_text(line.format(1) + line.format(2) + '{"iteration": 3')
    assert [step.iteration for step in job.steps()] == [1, 2]
    file.write_text(line.format(1) + line.format(2) + line.format(3))
    assert [step.iteration for step in job.steps()] == [1, 2, 3]
    job.forget()
    assert job.steps() == []
