"""What a pod reports that was started on a node without NVIDIA's driver."""

import os
from pathlib import Path

from tests.gpu.failed_pod import termination_of_failed_pod

FLAGS = """
    --num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 64 --max-position-embeddings 64
    --micro-batch-size 1 --global-batch-size 1 --train-iters 2 --lr 1e-4 --bf16 --mock-data
    --tokenizer-type NullTokenizer --vocab-size 255
"""


def test_a_pod_without_a_driver_names_it_and_what_to_check(tmp_path: Path) -> None:
    """It may be another node's: the pod ends with a code that has it replaced."""
    message = termination_of_failed_pod(FLAGS, 1, os.environ, tmp_path)
    assert message["message"].startswith("no NVIDIA driver in this container")
    for remedy in ("request GPUs", "container toolkit", "podTemplate.runtimeClassName"):
        assert remedy in message["message"]
