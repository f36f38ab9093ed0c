"""What DeepSeek-V4's provider takes of Megatron-Bridge's settings, on GPUs too."""

import json
import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import json, os
import stand_ins
stand_ins.install()
from megatron_trainer.bridge.deepseek_v4_provider import DeepseekV4Provider

provider = DeepseekV4Provider(
    num_layers=4, hidden_size=64, num_attention_heads=4, num_moe_experts=4, moe_ffn_hidden_size=64,
    moe_shared_expert_intermediate_size=64, gated_linear_unit=True, add_bias_linear=False,
    moe_grouped_gemm=True, moe_token_dispatcher_type="alltoall", moe_shared_expert_overlap=True,
    bias_activation_fusion=True, recompute_granularity="selective",
    recompute_modules=["moe_act", "mla_up_proj"],
)
provider.finalize()
names = ("moe_shared_expert_overlap", "bias_activation_fusion", "recompute_modules")
print(json.dumps({name: getattr(provider, name) for name in names}), flush=True)
os._exit(0)  # hollow modules fail at interpreter shutdown
"""


def test_shared_experts_are_computed_by_code_that_clamps() -> None:
    """Megatron's overlap of shared experts and its fused activations do not (0.19.2, `shared_experts.py`)."""
    path = os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "moe_shared_expert_overlap": False,
        "bias_activation_fusion": False,
        "recompute_modules": ["moe_act"],
    }
