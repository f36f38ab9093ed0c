"""The check of a node that the operator has cordoned: every device, without a gang."""

import json
import os
import subprocess
import sys
from pathlib import Path

INJECT = Path(__file__).with_name("inject")


def check(folder: Path, *faults: dict[str, object], devices: int) -> tuple[int, dict[str, object]]:
    """Exit code and termination message of the program."""
    log = folder / "termination-log"
    environment = os.environ | {
        "MEGATRON_PLATFORM": "cpu",
        "MEGATRON_NODE_NAME": "gpu-7",
        "MEGATRON_TERMINATION_LOG": str(log),
        "PYTHONPATH": str(INJECT),
        "TEST_FAULTS": json.dumps(faults),
        "GLOO_SOCKET_IFNAME": "lo",
    }
    program = [sys.executable, "-m", "megatron_trainer.launcher.node_check", f"--devices={devices}"]
    code = subprocess.run(program, env=environment, check=False).returncode
    return code, json.loads(log.read_text()) if log.exists() else {}


def test_a_node_whose_devices_compute_correctly_passes(tmp_path: Path) -> None:
    assert check(tmp_path, devices=2) == (0, {})


def test_a_node_with_a_faulty_device_ends_with_evidence(tmp_path: Path) -> None:
    code, message = check(tmp_path, {"what": "wrong-product", "rank": 0}, devices=1)
    assert (code, message["evidence"]) == (138, "Preflight")
    assert str(message["message"]).startswith("check of gpu-7: device 0: ")


def test_a_device_that_nobody_could_check_does_not_pass(tmp_path: Path) -> None:
    code, message = check(tmp_path, {"what": "die-in-check", "rank": 0}, devices=1)
    assert (code, message["evidence"]) == (138, "")
    assert message["message"] == "check of gpu-7: device 0: the process that checked it left no report"
