"""Why Step 3.5 is refused: what Megatron Core lacks of the layers that config.json describes."""

from megatron_operator.catalog import bridge_support

from tests.bridge.packages import folder

SETTINGS = ("head_wise_attn_gate", "rotary_base_per_layer")
"""What Bridge sets of config.json for the layers of Megatron Core."""


def test_megatron_core_reads_neither_gates_of_heads_nor_rotary_embeddings_of_layers() -> None:
    provider = folder("megatron.bridge") / "models" / "stepfun" / "step35_provider.py"
    core = [path.read_text() for path in folder("megatron.core").rglob("*.py")]
    function = "step35_196b_a11b_pretrain_512gpu_h100_bf16_config"

    assert [name for name in SETTINGS if name not in provider.read_text()] == []
    assert [name for name in SETTINGS if any(name in text for text in core)] == []
    assert "neither its gate for each head" in bridge_support.obstacle(function, "pretrain")
