"""Parameters of models whose layers differ are those of Megatron's heterogeneous layers."""

import json

import pytest
import torch
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.models.gpt.heterogeneous.heterogeneous_layer_specs import get_gpt_heterogeneous_layer_spec
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer.heterogeneous.heterogeneous_config import HeterogeneousTransformerConfig
from megatron_operator.catalog.architecture import Architecture, LayerRun
from megatron_operator.planner.estimate.parameters import parameters
from stages import Megatron
from test_hybrid_sizes import ENTRIES, shape_of, start

HETEROGENEOUS = [name for name, model in ENTRIES.items() if model.heterogeneous_layers]


def block(run: LayerRun, groups: int | None) -> dict[str, dict[str, object]]:
    """A layer as `heterogeneous_config.py` reads it."""
    width = run.ffn_hidden_size
    return {
        "attention": {"no_op": not run.attention, "num_query_groups": groups if run.attention else None},
        "mlp": {"no_op": width is None, "ffn_hidden_size": width},
    }


def built(m: Architecture, runs: list[LayerRun]) -> int:
    """Number of parameters of Megatron's model with one layer of each run."""
    blocks = {"block_configs": [block(run, m.num_query_groups) for run in runs]}
    with pytest.MonkeyPatch.context() as patch, torch.device("meta"):
        patch.setattr(torch.cuda, "current_device", lambda: "meta")
        config = HeterogeneousTransformerConfig(
            num_layers=len(runs),
            hidden_size=m.hidden_size,
            num_attention_heads=m.num_attention_heads,
            num_query_groups=m.num_query_groups,
            kv_channels=m.kv_channels,
            normalization="RMSNorm",
            add_bias_linear=False,
            gated_linear_unit=True,
            activation_func=torch.nn.functional.silu,
            heterogeneous_layers_config_encoded_json=json.dumps(blocks),
            perform_initialization=False,
            use_cpu_initialization=True,
            gradient_accumulation_fusion=False,
            persist_layer_norm=False,
        )
        model = GPTModel(
            config,
            get_gpt_heterogeneous_layer_spec(config),
            vocab_size=m.vocab_size,
            max_sequence_length=4096,
            share_embeddings_and_output_weights=False,
            position_embedding_type="rope",
            pg_collection=ProcessGroupCollection.use_mpu_process_groups(),
        )
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("name", HETEROGENEOUS)
def test_parameters_of_layers_that_differ_match_the_real_ones(megatron: Megatron, name: str) -> None:
    """One layer of each kind, at full width."""
    model = ENTRIES[name]
    kinds = {(run.attention, run.ffn_hidden_size) for run in model.heterogeneous_layers or ()}
    runs = [LayerRun(count=1, attention=attends, ffn_hidden_size=width) for attends, width in kinds]
    start(megatron)
    short = model.model_copy(update={"heterogeneous_layers": runs, "num_layers": len(runs)})
    shape = shape_of(short)
    assert parameters(shape, shape.vocab) == built(model, runs)
