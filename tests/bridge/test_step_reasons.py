"""Why layers of Step are the trainer's own: what Megatron Core and Megatron-Bridge lack of config.json."""

import re

from megatron_operator import catalog

from tests.bridge.packages import folder

SETTINGS = ("head_wise_attn_gate", "rotary_base_per_layer", "activation_func_clamp_value_shared_expert")
"""What Bridge sets of config.json for the layers of Megatron Core."""
STEPFUN = folder("megatron.bridge") / "models" / "stepfun"


def test_megatron_core_reads_neither_gates_of_heads_nor_rotary_embeddings_of_layers() -> None:
    provider = (STEPFUN / "step35_provider.py").read_text()
    core = [path.read_text() for path in folder("megatron.core").rglob("*.py")]

    assert [name for name in SETTINGS if name not in provider] == []
    assert [name for name in SETTINGS if any(name in text for text in core)] == []


def test_bridge_has_one_token_more_in_a_window_than_transformers() -> None:
    bridge = (STEPFUN / "step35_bridge.py").read_text()
    masks = (folder("transformers") / "masking_utils.py").read_text()
    assert 'sliding_attention_setting["window_size"] = [int(sliding_window), 0]' in bridge
    assert "kv_idx > q_idx - sliding_window" in masks
    model = catalog.load().get("step3.5-196b-a11b").model
    # Megatron counts the tokens before a position.
    assert model.window_size == "511,0"


def test_the_function_of_step_3_7_reads_flickr8k_and_its_model_predicts_no_further_tokens() -> None:
    recipe = folder("megatron.bridge") / "recipes" / "stepfun" / "h100" / "step37.py"
    provider = (STEPFUN / "step37_provider.py").read_text()
    built = re.search(r"Step37Model\((.*?)\n        \)", provider, re.S)

    assert "cfg.dataset = Step37Flickr8kSFTDataProvider(" in recipe.read_text()
    assert built is not None
    assert "mtp_block_spec" not in built[1]


def test_the_trial_of_step_3_7_starts_no_recipe() -> None:
    functions = {x.function: x for x in catalog.load().get("step3.7-flash-sft").layouts}
    trial = functions["step37_sft_4gpu_h100_bf16_flickr8k_smoke_config"]
    assert trial.obstacle.startswith("trains the projector on one pack of Flickr8k")
    assert not functions["step37_sft_64gpu_h100_bf16_flickr8k_config"].obstacle
