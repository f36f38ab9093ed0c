"""The files of examples/platforms are valid, and the objects of a run of two nodes equal the golden files."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from megatron_operator import catalog, planner
from megatron_operator.api import quantity, yaml_documents
from megatron_operator.api.platform_validation import parse_platform
from megatron_operator.api.recipe import MegatronRecipeSpec
from megatron_operator.manifests import build

from tests.unit.manifests.test_golden import Plain

FILES = sorted((Path(__file__).parents[3] / "examples" / "platforms").glob("*.yaml"))
PROFILES = [
    (path, name)
    for path in FILES
    for name in parse_platform(yaml_documents.load(path.read_text()), "").accelerators
]


def test_there_is_a_profile_for_each_supported_fabric() -> None:
    assert {path.stem for path in FILES} == {
        "aks-nd-h100-v5", "eks-p5", "gb200-nvl72", "gke-a3-mega", "gke-a3-ultra", "infiniband-sriov",
    }  # fmt: skip


HOST_GIB = {"gb200-nvl72": 960e9 / 2**30}
"""Memory of a node by file: two Grace processors of at most 480 GB each."""


@pytest.mark.parametrize(
    ("path", "profile"), [each for each in PROFILES if each[0].stem in HOST_GIB], ids=str
)
def test_a_pod_of_a_whole_node_leaves_memory_for_the_system(path: Path, profile: str) -> None:
    found = parse_platform(yaml_documents.load(path.read_text()), path.name).accelerators[profile]
    asked = sum(quantity.parse(size) for size in (found.resources.memory, found.shm_size or "0"))
    assert asked / 2**30 <= 0.95 * HOST_GIB[path.stem]


@pytest.mark.parametrize(
    ("path", "profile"), PROFILES, ids=[f"{path.stem}-{name}" for path, name in PROFILES]
)
def test_objects_of_a_ready_profile_equal_the_golden_files(path: Path, profile: str, golden: Any) -> None:
    platform = parse_platform(yaml_documents.load(path.read_text()), path.name)
    count = 2 * platform.accelerators[profile].per_node
    spec = MegatronRecipeSpec.model_validate(
        {
            "recipe": "llama3-8b",
            "accelerator": {"type": profile, "count": count},
            "data": {"mockData": True},
            "checkpoint": {"volume": {"claimName": "checkpoints"}},
        }
    )
    resolved = catalog.resolve(spec, platform, catalog.load())
    run = planner.PlannedRun("llama3-8b", "research", resolved, planner.plan(resolved))
    manifests = build(run, "11111111-2222-3333-4444-555555555555")
    assert manifests.job["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"] == 1
    text = yaml.dump_all(manifests.all(), Dumper=Plain, sort_keys=False, width=110)
    golden.check(f"platforms/{path.stem}-{profile}.yaml", text)
