"""Golden recipes, resolved and planned."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from megatron_operator import catalog, planner
from megatron_operator.api.platform import PlatformConfig
from megatron_operator.api.recipe import MegatronRecipeSpec
from megatron_operator.api.status import Plan
from megatron_operator.catalog import ResolvedRecipe
from megatron_operator.manifests import Manifests, build

GOLDEN = Path(__file__).parents[2] / "golden"
Change = Callable[[dict[str, Any]], None]


class Run:
    """A golden recipe, with an optional change of its spec."""

    def __init__(self, name: str, change: Change | None = None) -> None:
        recipe = yaml.safe_load((GOLDEN / "recipes" / f"{name}.yaml").read_text())
        if change is not None:
            change(recipe["spec"])
        self.metadata = recipe["metadata"]
        platform = PlatformConfig.model_validate(yaml.safe_load((GOLDEN / "platform.yaml").read_text()))
        spec = MegatronRecipeSpec.model_validate(recipe["spec"])
        self.resolved: ResolvedRecipe = catalog.resolve(spec, platform, catalog.load())
        self.plan: Plan = planner.plan(self.resolved)

    def build(self, *, require_checkpoint: bool = False) -> Manifests:
        run = planner.PlannedRun(self.metadata["name"], self.metadata["namespace"], self.resolved, self.plan)
        return build(run, "11111111-2222-3333-4444-555555555555", require_checkpoint=require_checkpoint)

    def pod(self) -> dict[str, Any]:
        """The pod template of the job's workers, or of its only pod."""
        replicas = self.build().job["spec"]["pytorchReplicaSpecs"]
        return dict(replicas.get("Worker", replicas["Master"])["template"])

    def container(self) -> dict[str, Any]:
        return dict(self.pod()["spec"]["containers"][0])

    def env(self) -> dict[str, str]:
        return {entry["name"]: entry["value"] for entry in self.container()["env"]}


@pytest.fixture
def run() -> type[Run]:
    return Run
