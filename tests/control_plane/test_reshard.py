"""`megatron reshard` against the operator: a run that was begun without `elastic` gets another layout."""

import os
import subprocess
import sys
from pathlib import Path

import yaml
from localcluster import Cluster

from testkit.waiting import DEADLINE
from tests.control_plane.conftest import PLATFORM
from tests.control_plane.world import World

MEGATRON = Path(sys.executable).with_name("megatron")
CONTRACT = "optimizerReshardable"


def reshard(world: World, cluster: Cluster, folder: Path, *sizes: str) -> subprocess.Popen[str]:
    """Start the command for the run `run`."""
    platform = folder / "platform.yaml"
    platform.write_text(yaml.safe_dump(PLATFORM))
    kubectl = Path(cluster.paths.binary("kubectl")).parent
    words = [MEGATRON, "reshard", "run", *sizes, "--platform", platform]
    words += ["--namespace", world.namespace, "--kubeconfig", cluster.kubeconfig]
    return subprocess.Popen(
        words,
        env=os.environ | {"PATH": f"{kubectl}:{os.environ['PATH']}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_a_run_begun_without_elastic_gets_another_layout(
    world: World, cluster: Cluster, tmp_path: Path
) -> None:
    world.apply("run")
    world.train("run", 60, checkpoint=50)
    layout = ("--tensor-model-parallel-size", "1", "--pipeline-model-parallel-size", "2")
    command = reshard(world, cluster, tmp_path, *layout)
    waiting = {"checkpoint": {"contract": {CONTRACT: "fromNextCheckpoint"}}}
    state = world.wait_for("run", status=waiting)
    assert state.status["plan"]["tensorModelParallelSize"] == 2, "it saves in its own layout first"
    world.train("run", 61, checkpoint=50, generation=2, resumedFrom=50)
    assert command.poll() is None, "it waits for a checkpoint of the new job"

    world.train("run", 71, checkpoint=70, generation=2, resumedFrom=50)
    printed, _ = command.communicate(timeout=DEADLINE)
    assert command.returncode == 0, printed
    assert "TP 1 x PP 2 x CP 1 x DP 2 = 4, in 2 pods of 2" in printed
    state = world.train("run", 72, checkpoint=70, generation=3, resumedFrom=70)
    assert state.status["plan"]["pipelineModelParallelSize"] == 2
    assert state.environment["MEGATRON_REQUIRE_CHECKPOINT"] == "1"
