"""The pods of the baselines, derived from the operator's pod template."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from bench.recovery_systems import ByExitCode, ColdRestart, OnFailure, Torchrun
from testkit.kubectl import Kubectl

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
def kubectl(tmp_path: Path) -> Kubectl:
    kubeconfig = {
        "current-context": "none",
        "contexts": [{"name": "none", "context": {"cluster": "none", "user": "none"}}],
        "clusters": [{"name": "none", "cluster": {"server": "http://127.0.0.1:1"}}],
        "users": [{"name": "none", "user": {}}],
    }
    file = tmp_path / "kubeconfig"
    file.write_text(yaml.safe_dump(kubeconfig))
    return Kubectl(file, "bench")


@pytest.mark.parametrize(
    ("kind", "restarts"), [(OnFailure, 0), (ByExitCode, 0), (Torchrun, 100), (ColdRestart, 0)]
)
def test_torchrun_replaces_the_launcher(
    kind: type[Torchrun | OnFailure], restarts: int, kubectl: Kubectl
) -> None:
    system = kind(kubectl, "plain", TEMPLATE, Path("/volume"))
    container = system.pod_template()["spec"]["containers"][0]
    assert container["args"] == [
        *("torchrun", "--nnodes=2", "--nproc-per-node=2", f"--max-restarts={restarts}"),
        *("--rdzv-backend=c10d", "--rdzv-endpoint=plain-master-0:29500", "--rdzv-id=plain"),
        *("/plain/plain_pretrain.py", "--save", "/checkpoints/plain", "--load", "/checkpoints/plain"),
        *("--data-cache-path", "/checkpoints/plain/data-cache", "--distributed-timeout-minutes", "1"),
    ]
    assert container["command"][:2] == ["sh", "-c"]
    assert system.folder == Path("/volume/plain")


def test_a_job_may_keep_its_checkpoints_on_its_own_volume(kubectl: Kubectl) -> None:
    job = OnFailure(kubectl, "plain", TEMPLATE, Path("/volume"), "small-disk")
    claims = [
        volume["persistentVolumeClaim"]["claimName"]
        for volume in job.pod_template()["spec"]["volumes"]
        if "persistentVolumeClaim" in volume
    ]
    assert claims == ["small-disk"]
    assert TEMPLATE["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"] == "checkpoints"


def test_only_appended_records_are_read(tmp_path: Path, kubectl: Kubectl) -> None:
    job = OnFailure(kubectl, "plain", TEMPLATE, tmp_path)
    assert job.records() == []
    job.folder.mkdir()
    file = job.folder / "progress.jsonl"
    line = '{{"iteration": {}, "lmLoss": 2.0, "time": 1.0, "generation": 0}}\n'
    file.write_text(line.format(1) + line.format(2) + '{"iteration": 3')
    assert [record.iteration for record in job.records()] == [1, 2]
    file.write_text(line.format(1) + line.format(2) + line.format(3))
    assert [record.iteration for record in job.records()] == [1, 2, 3]
    job.delete_checkpoints()
    assert job.records() == []
