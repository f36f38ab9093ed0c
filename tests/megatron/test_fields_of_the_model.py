"""`megatron-convert` compares every setting of Megatron's model that changes its logits.

A field that a release of Megatron adds is in neither of the two lists: decide whether it changes the logits
of a model with the same weights.
"""

import dataclasses
from pathlib import Path

from megatron.core.model_parallel_config import ModelParallelConfig
from megatron.core.transformer.transformer_config import MLATransformerConfig
from megatron.training.models.gpt import GPTModelConfig
from megatron_trainer.weights.model_check import FIELDS

OTHERS = Path(__file__).with_name("fields_that_change_no_logits.txt")


def fields_of(kind: type) -> set[str]:
    return {field.name for field in dataclasses.fields(kind)}


def test_every_field_of_the_model_is_compared_or_known_to_change_no_logits() -> None:
    fields = (fields_of(MLATransformerConfig) | fields_of(GPTModelConfig)) - fields_of(ModelParallelConfig)
    others = set(OTHERS.read_text().split())
    assert fields - FIELDS.keys() == others
    assert not others & FIELDS.keys()
    # Those are attributes that Megatron sets on the configuration of models with YaRN.
    assert all(name.startswith("yarn_") for name in FIELDS.keys() - fields)
