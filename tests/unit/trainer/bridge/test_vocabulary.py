"""Rows of the vocabulary that a run has, and those that its export needs."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from megatron_contract.bridge_run import BASE_OF_EXPORT, MODEL_FOLDER, Value
from megatron_contract.exit_codes import ExitCode
from megatron_trainer.bridge import model_folder, vocabulary
from megatron_trainer.worker.failures import RankError

NEEDED, TOKENS = 151_936, 151_669
"""Rows of the config.json of Qwen3, and tokens of its tokenizer."""


@pytest.fixture(autouse=True)
def _configuration_of_qwen3(monkeypatch: pytest.MonkeyPatch) -> None:
    """Megatron-Bridge, which reads config.json, is not in this environment."""
    monkeypatch.setattr(model_folder, "vocabulary", lambda _folder: NEEDED)


def of_bridge(rows: int | None, tokens: int, of_tokenizer: bool) -> tuple[int, bool]:
    return (tokens, True) if of_tokenizer or rows is None else (rows, False)


def sizes(rows: int | None, tp: int = 1, *, exports: bool = True) -> tuple[int, bool]:
    """What a run with the tokenizer of its model gets; `rows`: None for those of the tokenizer."""
    config = SimpleNamespace(
        model=SimpleNamespace(tensor_model_parallel_size=tp, make_vocab_size_divisible_by=128),
        tokenizer=SimpleNamespace(tokenizer_model="/data/qwen3"),
    )
    overrides: dict[str, Value] = {MODEL_FOLDER: "/data/qwen3"}
    overrides |= {BASE_OF_EXPORT: "/data/qwen3"} if exports else {}
    return vocabulary.fitted(config, overrides, of_bridge)(rows, TOKENS, rows is None)


@pytest.mark.parametrize(("rows", "found"), [(None, 151_680), (151_700, 151_700)])
def test_fewer_rows_than_an_export_needs_are_refused_with_both(rows: int | None, found: int) -> None:
    with pytest.raises(RankError) as error:
        sizes(rows)
    assert error.value.code == ExitCode.BAD_DATA
    assert str(error.value) == (
        "export: config.json in /data/qwen3 has 151936 rows of the vocabulary, and the model of this run has "
        f"{found}, as its tokenizer or its first checkpoint required, and the others cannot be exported; "
        "leave export out, or start a new recipe from imported weights (init.from.huggingFace)"
    )
    assert sizes(rows, exports=False) == of_bridge(rows, TOKENS, False)


@pytest.mark.parametrize(("rows", "tp"), [(NEEDED, 1), (NEEDED + 128, 1), (None, 8)])
def test_rows_that_an_export_needs_are_taken(rows: int | None, tp: int) -> None:
    """At TP 8 the tokenizer's are padded to 152,576."""
    assert sizes(rows, tp) == of_bridge(rows, TOKENS, False)


def test_rows_are_added_for_tokens_of_the_models_own_tokenizer_where_it_is_exported() -> None:
    assert sizes(TOKENS - 1) == (151_680, False)


@pytest.mark.parametrize(("padded", "tp"), [(True, 1), (True, 8), (False, 1)])
def test_rows_below_adapters_are_those_of_their_checkpoint(padded: bool, tp: int, tmp_path: Path) -> None:
    model = {
        "vocab_size": TOKENS if padded else NEEDED,
        "should_pad_vocab": padded,
        "make_vocab_size_divisible_by": 128,
        "tensor_model_parallel_size": tp,
    }
    (tmp_path / "run_config.yaml").write_text(yaml.safe_dump({"model": model}))
    if padded and tp == 1:
        with pytest.raises(RankError, match=f"the model of {tmp_path} has 151680, as its"):
            vocabulary.require_rows_below_adapters(tmp_path, "/data/qwen3")
    else:
        vocabulary.require_rows_below_adapters(tmp_path, "/data/qwen3")
    vocabulary.require_rows_below_adapters(tmp_path, None)
