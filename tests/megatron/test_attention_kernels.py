"""Megatron asserts the values of Transformer Engine's variables that the operator requires."""

import os
from types import SimpleNamespace
from typing import get_args

import pytest
from megatron.core.models.common.language_module.language_module import LanguageModule
from megatron.core.transformer.enums import AttnBackend
from megatron_operator.api.training import TrainingSpec
from megatron_operator.manifests.asserted_variables import KERNELS, OF_BACKEND


@pytest.mark.parametrize("backend", OF_BACKEND)
def test_each_backend_has_its_values(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = SimpleNamespace(attention_backend=AttnBackend[backend], flash_attention_version=None)
    model = SimpleNamespace(config=config)
    for name in KERNELS:
        monkeypatch.setenv(name, "unset")  # put back at the end, whatever Megatron sets
        monkeypatch.delenv(name)
    LanguageModule._set_attention_backend(model)
    assert "".join(os.environ[name] for name in KERNELS) == OF_BACKEND[backend]
    for name, value in zip(KERNELS, OF_BACKEND[backend], strict=True):
        monkeypatch.setenv(name, "0" if value == "1" else "1")
        with pytest.raises(AssertionError, match=name):
            LanguageModule._set_attention_backend(model)
        monkeypatch.setenv(name, value)


def test_every_backend_of_the_field_is_known() -> None:
    literal, _ = get_args(TrainingSpec.model_fields["attention_backend"].annotation)
    assert set(get_args(literal)) == OF_BACKEND.keys()
