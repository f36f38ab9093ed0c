"""What a pod reports that was started on a node without NVIDIA's driver."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.trainer.gang import free_port

FLAGS = """
    --num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 64 --max-position-embeddings 64
    --micro-batch-size 1 --global-batch-size 1 --train-iters 2 --lr 1e-4 --bf16 --mock-data
    --tokenizer-type NullTokenizer --vocab-size 255
"""


def test_a_pod_without_a_driver_names_it_and_what_to_check(tmp_path: Path) -> None:
    """It may be another node's: the pod ends with a code that has it replaced."""
    termination = tmp_path / "termination"
    pod = {
        "MEGATRON_PLATFORM": "gpu",
        "MEGATRON_PROGRESS_PORT": str(free_port()),
        "MEGATRON_TERMINATION_LOG": str(termination),
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": str(free_port()),
        "PET_NNODES": "1",
        "PET_NODE_RANK": "0",
        "PET_NPROC_PER_NODE": "1",
        "TMPDIR": str(tmp_path),
    }
    launcher = [sys.executable, "-W", "ignore", "-m", "megatron_trainer.launcher.main", *FLAGS.split()]
    done = subprocess.run(launcher, env={**os.environ, **pod}, capture_output=True, text=True, check=False)
    message = json.loads(termination.read_text())
    assert (message["reason"], done.returncode) == ("WorkerDied", 138), done.stderr[-3000:]
    assert message["message"].startswith("no NVIDIA driver in this container")
    for remedy in ("request GPUs", "container toolkit", "podTemplate.runtimeClassName"):
        assert remedy in message["message"]
