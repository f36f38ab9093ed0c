"""What DeepSeek-V4's provider takes of Megatron-Bridge's settings, on GPUs too."""

import json
import subprocess
import sys

PROGRAM = """
import json
from megatron_trainer.bridge import absent_packages
absent_packages.install("cpu")
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
print(json.dumps({name: getattr(provider, name) for name in names}))
"""


def test_shared_experts_are_computed_by_code_that_clamps() -> None:
    """Megatron's overlap of shared experts and its fused activations do not (0.19.2, `shared_experts.py`)."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM], capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "moe_shared_expert_overlap": False,
        "bias_activation_fusion": False,
        "recompute_modules": ["moe_act"],
    }
