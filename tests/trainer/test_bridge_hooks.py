"""What the hooks into Megatron-Bridge's loop report of its training steps."""

import importlib.util
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("modelopt") is None,
    reason="what Megatron-Bridge imports is not installed: run make bridge-training",
)

# A process of its own: hooks stay installed.
EVALUATE = """
import importlib, sys
from types import SimpleNamespace
from megatron_trainer.weights import cpu_model
cpu_model.import_bridge()
from megatron_trainer.bridge.hooks import BridgeHooks
class Config(SimpleNamespace):
    def to_yaml(self, path): ...
class Reporter(SimpleNamespace):
    def send(self, what, **fields): print(what, *fields.values())
model = SimpleNamespace(**dict.fromkeys(sys.argv[2:]))
parts = {"checkpoint": SimpleNamespace(save=None), "train": SimpleNamespace(train_iters=1)}
config = Config(**parts, model=model, dataset=SimpleNamespace())
step = importlib.import_module(sys.argv[1])
step.forward_step = lambda: print("batch")
hooks = BridgeHooks(config, Reporter(rank=0, generation=1), None, None)
hooks.install()
hooks._evaluate(lambda: step.forward_step())
"""


@pytest.mark.parametrize(
    ("step", "fields"),
    [
        ("training.gpt_step", []),
        ("training.vlm_step", []),
        ("models.qwen_omni.qwen3_omni_step", ["thinker_config"]),
    ],
)
def test_an_evaluation_reports_its_batches(step: str, fields: list[str]) -> None:
    command = [sys.executable, "-W", "ignore", "-c", EVALUATE, f"megatron.bridge.{step}", *fields]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-4:] == ["phase evaluating", "pulse", "batch", "phase training"], (
        done.stderr[-3000:]
    )
