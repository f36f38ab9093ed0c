"""The kind of job that a release chooses where its values name none."""

from typing import Any

import pytest
import yaml
from megatron_operator.controller.config_source import PLATFORM_KEY, parse_platform

from tests.unit.chart.conftest import CHART, KUBE_VERSION

JOBSET, PYTORCHJOB = "jobset.x-k8s.io/v1alpha2/JobSet", "kubeflow.org/v1/PyTorchJob"


@pytest.mark.parametrize(
    ("has", "platform", "chosen"),
    [
        ([], {}, None),
        ([PYTORCHJOB], {}, None),
        ([JOBSET], {}, "jobset"),
        ([JOBSET, PYTORCHJOB], {}, None),
        ([JOBSET], {"jobBackend": "pytorchjob"}, None),
        ([JOBSET], {"gangScheduling": {"scheduler": "coscheduling"}}, None),
        ([JOBSET], {"gangScheduling": {"scheduler": "kubernetes"}}, "jobset"),
    ],
)
def test_a_cluster_with_jobset_and_no_training_operator_gets_jobsets(
    helm: Any, tmp_path: Any, has: list[str], platform: dict[str, Any], chosen: str | None
) -> None:
    values = tmp_path / "values.yaml"
    values.write_text(yaml.safe_dump({"platform": platform}))
    done = helm(
        "template", "megatron-operator", str(CHART), "--namespace", "megatron-system",
        "--values", str(values), "--kube-version", KUBE_VERSION,
        *(f"--api-versions={each}" for each in has),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    objects = [item for item in yaml.safe_load_all(done.stdout) if item]
    config_map = next(item for item in objects if item["metadata"]["name"] == "megatron-platform")
    annotations = config_map["metadata"].get("annotations") or {}
    assert annotations.get("megatron.training/chosen-job-backend") == chosen
    asked = platform.get("jobBackend", "pytorchjob")
    backend = parse_platform(config_map["data"][PLATFORM_KEY], "the chart").job_backend
    assert backend == (chosen or asked)
    deployment = next(item for item in objects if item["kind"] == "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert ("--jobsets" in container["args"]) == (chosen == "jobset")
