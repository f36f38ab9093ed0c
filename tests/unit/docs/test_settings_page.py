"""Every row of docs/settings.md: accepted and rendered to an argument that Megatron reads, or refused."""

from typing import Any

import pytest
from megatron_operator import catalog
from megatron_operator.api.errors import InvalidRecipeError
from megatron_operator.api.validation import parse_spec
from megatron_operator.cli.default_platform import default_platform
from megatron_operator.planner.admission import admit
from megatron_operator.planner.checks.passthrough import megatron_flags, unread_flags

from scripts import settings_page, settings_reach

DATA = settings_page.load()
ROWS = {name: row for rows in DATA["sections"].values() for name, row in rows.items()}
SETTABLE = {name: row for name, row in ROWS.items() if "recipe" in row}


OF_THE_DOCUMENTATION = (
    *("tensor_model_parallel_size", "pipeline_model_parallel_size", "sequence_parallel"),
    *("context_parallel_size", "expert_model_parallel_size", "num_layers_per_virtual_pipeline_stage"),
    *("use_distributed_optimizer", "num_layers", "hidden_size", "num_attention_heads", "num_query_groups"),
    *("ffn_hidden_size", "seq_length", "max_position_embeddings", "swiglu", "normalization"),
    *("use_rotary_position_embeddings", "untie_embeddings_and_output_weights", "disable_bias_linear"),
    *("micro_batch_size", "global_batch_size", "lr", "min_lr", "lr_decay_style", "lr_warmup_iters"),
    *("train_iters", "weight_decay", "clip_grad", "dataloader_type", "split", "bf16"),
    *("attention_softmax_in_fp32", "accumulate_allreduce_grads_in_fp32", "fp8_format"),
    *("fp8_amax_history_len", "fp8_amax_compute_algo", "overlap_grad_reduce", "overlap_param_gather"),
    *("tp_comm_overlap", "dp_comm_overlap_bucket_size", "recompute_activations", "recompute_granularity"),
    *("recompute_method", "recompute_num_layers", "cpu_offload_optimizer", "num_experts"),
    *("moe_router_topk", "moe_aux_loss_coeff", "moe_grouped_gemm", "moe_permute_fusion", "save", "load"),
    *("save_interval", "ckpt_format", "auto_detect_ckpt_format", "no_save_optim", "no_save_rng"),
    *("tokenizer_type", "tokenizer_model", "data_path"),
)
"""Every setting of the tables of Megatron's documentation."""


OF_EVERY_RUN = "save, load"
"""The row of arguments that no field sets."""


def arguments(row: dict[str, Any], *settings: dict[str, Any], name: str = "run") -> list[str]:
    recipe = DATA["bases"][row.get("base", "dense")]
    for more in settings:
        recipe = settings_reach.added(recipe, more)
    return admit(name, parse_spec(recipe), default_platform(), catalog.load()).arguments


@pytest.mark.parametrize("name", [each for each in SETTABLE if each != OF_EVERY_RUN])
def test_a_setting_becomes_an_argument_of_megatron_that_is_not_there_otherwise(name: str) -> None:
    row = ROWS[name]
    other = row.get("without", {})
    without, words = (" ".join(arguments(row, *more)) for more in ([other], [other, row["recipe"]]))
    assert f" {row['args']} " in f" {words} "
    assert f" {row['args']} " not in f" {without} "


def test_checkpoints_are_saved_and_loaded_in_a_folder_of_the_recipes_name() -> None:
    row = ROWS[OF_EVERY_RUN]
    words = " ".join(arguments(row, row["recipe"]))
    assert f" {row['args']} " in f" {words} "
    assert words.replace("/checkpoints/run", "/checkpoints/other") == " ".join(
        arguments(row, row["recipe"], name="other")
    )


@pytest.mark.parametrize("row", SETTABLE.values(), ids=SETTABLE)
def test_the_arguments_are_flags_that_the_loop_reads(row: dict[str, Any]) -> None:
    flags = {word.removeprefix("--") for word in row["args"].split() if word.startswith("--")}
    assert flags
    assert flags <= megatron_flags().keys()
    assert not flags & unread_flags().keys()


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_a_wrong_value_is_refused(row: dict[str, Any]) -> None:
    with pytest.raises(InvalidRecipeError) as refused:
        arguments(row, row["wrong"])
    assert str(refused.value.errors[0]).startswith(row["refusal"])


@pytest.mark.parametrize("wrong", [{"megatronArgs": {"ckpt-format": "torch"}}, ROWS["ckpt_format"]["wrong"]])
def test_another_format_of_checkpoints_is_refused_with_the_reason_by_either_name(wrong: Any) -> None:
    with pytest.raises(InvalidRecipeError) as refused:
        arguments({}, wrong)
    reason = "torch_dist (fsdp_dtensor with parallelism.useMegatronFsdp)"
    assert all(text in str(refused.value) for text in (reason, "formats that load in another layout"))


def test_the_page_has_these_rows() -> None:
    assert settings_page.PAGE.read_text() == settings_page.page(), "run make settings-page"


def test_every_setting_of_the_documentation_has_a_row() -> None:
    listed = {each for name in ROWS for each in name.split(", ")}
    assert len(OF_THE_DOCUMENTATION) == len(set(OF_THE_DOCUMENTATION)) == 60
    assert set(OF_THE_DOCUMENTATION) <= listed


@pytest.mark.parametrize(("name", "row"), ROWS.items(), ids=ROWS)
def test_a_row_has_a_meaning_and_names_where_it_works(name: str, row: dict[str, Any]) -> None:
    assert settings_reach.meaning(name, row).endswith(".")
    assert "where" in row or "recipe" in row


@pytest.mark.parametrize(
    ("name", "where"),
    [
        ("lr", "both engines"),
        ("hidden_size", "Megatron's loop"),
        ("dataloader_type", "Megatron's loop, Bridge's pretraining"),
        ("finetune", "both engines"),
        ("tp_comm_overlap", "Megatron's loop; GPUs"),
        ("fp8_amax_history_len", "Megatron's loop; GPUs from Ada and Hopper on"),
        ("fp4_format", "Megatron's loop; GPUs from Blackwell on"),
    ],
)
def test_where_a_setting_works_follows_from_what_takes_it(name: str, where: str) -> None:
    assert settings_reach.works_in(name, ROWS[name], DATA) == where


@pytest.mark.parametrize("kind", ["fine-tuning", "pretraining", "cpu"])
def test_recipes_that_settings_are_added_to_are_valid_without_them(kind: str) -> None:
    admit("run", parse_spec(DATA["elsewhere"][kind]), default_platform(), catalog.load())


def test_a_row_with_several_fields_has_to_name_its_own() -> None:
    row = {"recipe": {"training": {"fp8Format": "hybrid", "fp8Recipe": "delayed"}}}
    with pytest.raises(ValueError, match=r"set `field` to one of training\.fp8Format, training\.fp8Recipe"):
        settings_reach.field("amax", row)
