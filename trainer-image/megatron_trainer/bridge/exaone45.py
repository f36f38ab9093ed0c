"""Has Megatron-Bridge build EXAONE 4.5 as transformers does, and predict further tokens.

Bridge 0.6.2 has another epsilon in the norms of the vision tower, and its model does not pass the tokens on
that multi-token prediction embeds.
"""

from typing import Any, Final

_EPSILON: Final = 1e-6


def install() -> None:
    """Call it once in a process, after Bridge is imported."""
    from megatron.bridge.models.exaone.exaone45.modelling_exaone45 import model

    configure, language_model = model.get_vision_model_config, model.Exaone45GPTModel

    def with_epsilon(*args: Any, **kwargs: Any) -> Any:
        config = configure(*args, **kwargs)
        config.layernorm_epsilon = _EPSILON
        return config

    class WithTokens(language_model):  # type: ignore[misc, valid-type]
        """The language model, given the tokens of the whole model."""

        tokens: Any = None

        def forward(self, input_ids: Any, *args: Any, **kwargs: Any) -> Any:
            """Return the loss of each token, or logits."""
            del input_ids
            return super().forward(self.tokens, *args, **kwargs)

    inner = model.Exaone45Model.forward

    def with_tokens(self: Any, input_ids: Any, *args: Any, **kwargs: Any) -> Any:
        self.language_model.tokens = input_ids
        return inner(self, input_ids, *args, **kwargs)

    model.get_vision_model_config = with_epsilon
    model.Exaone45GPTModel = WithTokens
    model.Exaone45Model.forward = with_tokens


def build_locally() -> None:
    """Have layers of multi-token prediction built without Transformer Engine."""
    from megatron.bridge.models.exaone.exaone45 import exaone45_provider

    from megatron_trainer.bridge.family_layers import exaone45_layer

    exaone45_provider.exaone_45_transformer_layer_spec = exaone45_layer
