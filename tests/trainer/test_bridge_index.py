"""The index of the samples that Megatron-Bridge pretrains on, built by the Job that checks the data."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from megatron_contract.bridge_run import PATH_TO_CACHE, BridgeRun
from megatron_contract.environment import ENV_TERMINATION_LOG

from testkit.pretrained import CASES
from tests.trainer.bridge_run import rendered_objects
from tests.trainer.test_bridge_pretraining import SAVED_EVERY, PretrainingGang, _spec, _training
from tests.trainer.test_dataset_index import BUILT, files
from tests.trainer.warm_process import WarmProcess

CASE = next(case for case in CASES if case.recipe == "deepseek-v2-lite")
SETTINGS: dict[str, Any] = {
    "training": _training(2),
    # A claim that exists: the Job writes the index beside the checkpoints.
    "checkpoint": {"saveInterval": SAVED_EVERY, "volume": {"claimName": "runs"}},
}
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("modelopt") is None,
    reason="what Megatron-Bridge imports is not installed: run make bridge-training",
)


@pytest.fixture
def run(tmp_path: Path, corpus: Path, warm_bridge: WarmProcess) -> PretrainingGang:
    return PretrainingGang(tmp_path, warm_bridge, corpus, CASE, **SETTINGS)


def checked(run: PretrainingGang, settings: dict[str, Any] = SETTINGS) -> str:
    """Run the command of the Job that checks the data; returns its output."""
    job = rendered_objects(_spec(CASE) | settings).check_job
    assert job is not None
    [container] = job["spec"]["template"]["spec"]["containers"]
    words = [str(word) for word in container["args"]]
    words[words.index("--progress-port") : words.index("--progress-port") + 2] = []
    for volume, folder in (("/data/", run.folder / "data"), ("/checkpoints/run/", run.save)):
        words = [re.sub(rf'(?<![^"]){volume}', f"{folder}/", word) for word in words]
    command = [sys.executable, "-W", "ignore", "-m", "megatron_trainer.data.prepare", *words]
    environment = os.environ | {ENV_TERMINATION_LOG: str(run.folder / "termination")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def cache_of(run: PretrainingGang) -> Path:
    return Path(str(BridgeRun.from_arguments(run.arguments()).overrides[PATH_TO_CACHE]))


def test_ranks_read_the_index_that_the_check_has_built(run: PretrainingGang) -> None:
    assert f"new files of the index in {cache_of(run)}, built in" in checked(run)
    before = files(cache_of(run))
    assert before
    run.run_to_end()
    assert sorted(run.losses()) == [1, 2]
    assert files(cache_of(run)) == before, "rank 0 built nothing"
    assert BUILT not in run.log()


def test_rank_0_reports_an_index_that_no_job_has_built(run: PretrainingGang) -> None:
    run.run_to_end()
    built = len(files(cache_of(run)))
    assert built
    assert f"rank 0 has built {built} {BUILT} {cache_of(run)} in " in run.log()
