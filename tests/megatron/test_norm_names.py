"""Norms in checkpoints of a CPU's layers, by the names that Transformer Engine's layers have there."""

import json
import subprocess
import sys

import pytest

SCRIPT = """
import json, sys
from megatron_trainer.platform import cpu
cpu.install()
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.transformer import MLATransformerConfig, TransformerConfig
from megatron.core.transformer.identity_op import IdentityOp
from megatron_trainer.weights.cpu_model import one_process

experts, latent = json.loads(sys.argv[1])
kind = MLATransformerConfig if latent else TransformerConfig
more = {"q_lora_rank": 16, "kv_lora_rank": 16, "rope_type": "rope"} if latent else {}
config = kind(
    num_layers=1, hidden_size=64, num_attention_heads=4, num_moe_experts=experts, normalization="RMSNorm",
    use_cpu_initialization=True, qk_layernorm=latent, **more,
)
layer = get_gpt_layer_local_spec(experts, False, latent, latent, normalization="RMSNorm")
if latent:
    layer.submodules.self_attention.submodules.core_attention = IdentityOp
with one_process():
    tensors = GPTModel(config, layer, 128, 32).sharded_state_dict().values()
names = {each.key for each in tensors}
print(json.dumps(sorted(name for name in names if "norm" in name and name.endswith("weight"))))
"""
QKV = "self_attention.linear_qkv.layer_norm_weight"
MLP = "mlp.linear_fc1.layer_norm_weight"
LATENT = {
    "input_layernorm.weight",
    "self_attention.linear_q_up_proj.layer_norm_weight",
    "self_attention.linear_kv_up_proj.layer_norm_weight",
}


@pytest.mark.parametrize(
    ("experts", "latent", "norms"),
    [
        (None, False, {QKV, MLP}),
        (4, False, {QKV, "pre_mlp_layernorm.weight"}),
        (None, True, LATENT | {MLP}),
        (4, True, LATENT | {"pre_mlp_layernorm.weight"}),
    ],
)
def test_norms_have_the_names_of_transformer_engines_layers(
    experts: int | None, latent: bool, norms: set[str]
) -> None:
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT, json.dumps([experts, latent])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = set(json.loads(done.stdout.splitlines()[-1]))
    assert found == {f"decoder.layers.{name}" for name in norms} | {"decoder.final_layernorm.weight"}
