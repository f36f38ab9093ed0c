"""Whether ranks that are forked from the fork server can use CUDA. Needs torch's CUDA build, no GPU.

torch marks the children of a process that has asked the CUDA runtime for devices, with a driver or without
one: `torch._C._cuda_isInBadFork()`.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.failed_pod import termination_of_failed_pod

torch = pytest.importorskip("torch", reason="make setup-trainer")
if not hasattr(torch._C, "_cuda_isInBadFork"):
    pytest.skip("this torch is not built for CUDA", allow_module_level=True)

WARM_UP = """
import json, os
from pathlib import Path
from megatron_trainer.launcher.warm_up import warm_up

programs = warm_up("gpu", ["--bf16"])
import torch

threads = len(list(Path("/proc/self/task").iterdir()))
child = os.fork()
if child == 0:
    os._exit(int(torch._C._cuda_isInBadFork()))
poisoned = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print(json.dumps({
    "poisoned": poisoned,
    "threads": threads,
    "cold": [programs.cold_rank, programs.cold_preflight],
    "initialised": torch.cuda.is_initialized(),
}))
"""

ASKING_IMPORT = """
import json, os
import torch
from megatron_trainer.platform import gpu

with gpu.imports_without_cuda():
    from torch.cuda import get_device_properties

    answers = [torch.cuda.current_device(), torch.cuda.get_device_capability(), get_device_properties(1).name]
child = os.fork()
if child == 0:
    os._exit(int(torch._C._cuda_isInBadFork()))
answers.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
try:
    get_device_properties(0)
except RuntimeError as error:
    answers.append(str(error))
print(json.dumps(answers))
"""


def run(program: str, environment: Mapping[str, str], *arguments: str) -> tuple[Any, str]:
    """Run `program`. Returns the JSON that it printed and its log."""
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


@pytest.fixture(scope="module")
def warm(with_nvml: Mapping[str, str]) -> tuple[dict[str, Any], str]:
    return run(WARM_UP, with_nvml)


def test_a_child_of_the_fork_server_can_use_cuda(warm: tuple[dict[str, Any], str]) -> None:
    assert warm[0]["poisoned"] == 0
    assert warm[0]["initialised"] is False


def test_the_fork_server_has_one_thread_after_its_imports(warm: tuple[dict[str, Any], str]) -> None:
    assert warm[0]["threads"] == 1


def test_ranks_start_cold_where_a_forked_child_cannot_initialise_cuda(
    warm: tuple[dict[str, Any], str],
) -> None:
    """NVML reports devices, but there is no driver."""
    result, log = warm
    assert "ranks start cold, not forked: Found no NVIDIA driver on your system" in log
    assert [words[-2:] for words in result["cold"]] == [["--bf16", FUSION], ["--bf16", FUSION]]
    assert [words[3] for words in result["cold"]] == ["rank", "preflight"]


def test_ranks_and_preflight_start_cold_where_imports_must_ask_cuda(without_nvml: Mapping[str, str]) -> None:
    result, log = run(WARM_UP, without_nvml)
    assert result["poisoned"] == 1
    assert "ranks start cold, not forked: Cannot re-initialize CUDA in forked subprocess" in log
    assert all(result["cold"])


def test_imports_that_ask_for_a_device_are_answered_by_nvml(with_nvml: Mapping[str, str]) -> None:
    """Transformer Engine does if flash-attn is installed. Later the same names ask CUDA."""
    device, capability, name, poisoned, later = run(ASKING_IMPORT, with_nvml)[0]
    assert (device, capability, name) == (0, [9, 0], "NVIDIA H100 80GB HBM3 (simulated)")
    assert poisoned == 0
    assert "Found no NVIDIA driver" in later


USED = """
import json
import torch
from megatron_trainer.platform import gpu

torch.cuda.init()
print(json.dumps(gpu.explain_cold_start()))
"""


def test_ranks_start_cold_in_a_process_that_has_used_a_device(
    simulated_cuda: Mapping[str, str], without_nvml: Mapping[str, str]
) -> None:
    """CUDA refuses its children."""
    reason, _ = run(USED, {**without_nvml, **simulated_cuda, "OPENBLAS_NUM_THREADS": "1"})
    assert reason.startswith("Cannot re-initialize CUDA in forked subprocess")


FUSION = "--no-gradient-accumulation-fusion"
FLAGS = """
    --num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 64 --max-position-embeddings 64
    --micro-batch-size 1 --global-batch-size 2 --train-iters 2 --lr 1e-4 --bf16 --mock-data
    --tensor-model-parallel-size 2 --sequence-parallel --tokenizer-type NullTokenizer --vocab-size 255
"""


def test_a_pod_whose_cuda_does_not_start_does_not_blame_the_flags(
    with_nvml: Mapping[str, str], tmp_path: Path
) -> None:
    """Megatron asks for the device while it validates these flags."""
    message = termination_of_failed_pod(FLAGS, 2, with_nvml, tmp_path)
    assert message["message"].startswith("CUDA cannot be initialised: Found no NVIDIA driver on your system")


WITH_A_THREAD = """
import json, sys, threading
from pathlib import Path
from megatron_trainer.platform import gpu

end = threading.Event()
thread = threading.Thread(target=end.wait)
thread.start()
Path(f"/proc/self/task/{thread.native_id}/comm").write_text(sys.argv[1])
with gpu.imports_without_cuda():
    import torch
print(json.dumps(gpu.explain_cold_start()))
end.set()
"""


@pytest.mark.parametrize(
    ("name", "reason"),
    [("cuda0000280000b", None), ("jemalloc_bg_thd", "the imports have started threads (jemalloc_bg_thd)")],
)
def test_a_thread_of_the_driver_alone_keeps_no_rank_from_being_forked(
    name: str, reason: str | None, simulated_cuda: Mapping[str, str]
) -> None:
    assert run(WITH_A_THREAD, os.environ | simulated_cuda, name)[0] == reason
