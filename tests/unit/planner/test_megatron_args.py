"""Megatron's arguments: complete, ordered, without anything that Megatron would ignore or misread."""

import argparse
from typing import Any

import pytest
from megatron_operator.api.errors import InvalidRecipeError
from megatron_operator.planner import megatron_arguments, plan
from megatron_operator.planner.checks.passthrough import passthrough_arguments


def words_of(resolved: Any, name: str = "run") -> list[str]:
    return megatron_arguments(resolved, plan(resolved), name)


def value(words: list[str], flag: str) -> str:
    assert words.count(flag) == 1, f"{flag} stands {words.count(flag)} times"
    return words[words.index(flag) + 1]


def test_no_flag_is_repeated(resolve: Any) -> None:
    for recipe, count in (("llama3-8b", 8), ("gpt3-175b", 64), ("llama3-70b", 64)):
        flags = [word for word in words_of(resolve(recipe, count)) if word.startswith("--")]
        assert len(flags) == len(set(flags))


def test_the_same_recipe_renders_the_same_arguments(resolve: Any) -> None:
    assert words_of(resolve("llama3-8b", 8)) == words_of(resolve("llama3-8b", 8))


def test_query_groups_also_enable_grouped_query_attention(resolve: Any) -> None:
    words = words_of(resolve("llama3-8b", 8))
    assert "--group-query-attention" in words
    assert value(words, "--num-query-groups") == "8"


def test_without_query_groups_neither_flag_is_set(resolve: Any) -> None:
    words = words_of(resolve("gpt3-1.3b", 8))
    assert "--group-query-attention" not in words
    assert "--num-query-groups" not in words


def test_surprising_defaults_of_megatron_are_always_set(resolve: Any) -> None:
    words = words_of(resolve("gpt3-1.3b", 8))
    for flag in (
        "--position-embedding-type", "--normalization", "--attention-dropout", "--hidden-dropout",
        "--adam-beta2", "--lr-decay-style", "--split", "--micro-batch-size", "--eval-interval",
        "--transformer-impl", "--ckpt-format",
    ):  # fmt: skip
        assert value(words, flag)


def test_the_coefficient_of_a_balancing_loss_is_set_only_with_such_a_loss(resolve: Any) -> None:
    experts: dict[str, Any] = {"numExperts": 8, "moeRouterTopk": 2}
    assert value(words_of(resolve("llama3-8b", 64, model=experts)), "--moe-aux-loss-coeff") == "0"
    without = words_of(resolve("llama3-8b", 64, model=experts | {"moeRouterLoadBalancingType": "none"}))
    assert value(without, "--moe-router-load-balancing-type") == "none"
    assert "--moe-aux-loss-coeff" not in without


@pytest.mark.parametrize(("kind", "argument"), [("allgather", "all_gather"), ("a2a", "a2a"), ("p2p", "p2p")])
def test_the_exchange_of_context_parallel_ranks_is_spelled_as_transformer_engine_knows_it(
    resolve: Any, kind: str, argument: str
) -> None:
    words = words_of(resolve("llama3-8b", 64, parallelism={"contextParallelSize": 2, "cpCommType": kind}))
    assert value(words, "--cp-comm-type") == argument


def test_iterations_and_samples_are_never_mixed(resolve: Any) -> None:
    in_iterations, in_samples = words_of(resolve("llama3-8b", 8)), words_of(resolve("gpt3-1.3b", 8))
    assert not [word for word in in_iterations if word.endswith("-samples")]
    assert not [
        word for word in in_samples if word in ("--train-iters", "--lr-warmup-iters", "--lr-decay-iters")
    ]


def test_a_ramp_up_replaces_the_batch_size(resolve: Any) -> None:
    training = {"stepBatchSizeSchedule": "0:64 10B:128", "trainTokens": "1T"}
    words = words_of(resolve("llama3-8b", 8, training=training))
    assert value(words, "--step-batch-size-schedule") == "0:64 10B:128"
    assert value(words, "--eval-global-batch-size") == "128"
    assert "--global-batch-size" not in words


def test_a_true_switch_has_no_value_and_a_false_one_is_omitted(resolve: Any) -> None:
    words = words_of(resolve("llama3-8b", 8, model={"qkLayernorm": True, "swiglu": False}))
    assert words[words.index("--qk-layernorm") + 1].startswith("--")
    assert "--swiglu" not in words


def test_the_run_saves_and_loads_in_its_own_directory(resolve: Any) -> None:
    words = words_of(resolve("llama3-8b", 8), name="my-run")
    assert value(words, "--save") == value(words, "--load") == "/checkpoints/my-run"


def test_an_elastic_run_saves_a_fully_reshardable_optimizer(resolve: Any) -> None:
    words = words_of(resolve("llama3-8b", 8, recovery={"elastic": {"minCount": 4}}))
    assert "--dist-ckpt-optim-fully-reshardable" in words
    assert "--dist-ckpt-optim-fully-reshardable" not in words_of(resolve("llama3-8b", 8))


@pytest.mark.parametrize(
    ("timeout", "minutes"), [("auto", "41"), ("600s", "41"), ("7200s", "131"), ("off", None)]
)
def test_collectives_time_out_after_the_watchdogs(resolve: Any, timeout: str, minutes: str | None) -> None:
    words = words_of(resolve("llama3-8b", 8, recovery={"hangTimeout": timeout}))
    if minutes is None:
        assert "--distributed-timeout-minutes" not in words
    else:
        assert value(words, "--distributed-timeout-minutes") == minutes


def test_a_stated_time_out_of_collectives_is_kept(resolve: Any) -> None:
    words = words_of(resolve("llama3-8b", 8, megatronArgs={"distributed-timeout-minutes": 5}))
    assert words.count("--distributed-timeout-minutes") == 1
    assert value(words, "--distributed-timeout-minutes") == "5"


def test_async_save_enables_its_worker(resolve: Any) -> None:
    words = words_of(resolve("llama3-8b", 8, checkpoint={"asyncSave": True}))
    assert {"--async-save", "--use-persistent-ckpt-worker"} <= set(words)


DATA = {
    "volume": {"claimName": "corpus"},
    "tokenizer": {"tokenizerType": "HuggingFaceTokenizer", "tokenizerModel": "/data/tokenizer"},
}


def test_one_dataset_has_no_weight_and_several_have(resolve: Any) -> None:
    one = words_of(resolve("llama3-8b", 8, data=DATA | {"blend": [{"path": "web_text_document"}]}))
    assert value(one, "--data-path") == "/data/web_text_document"
    blend = [{"path": "web", "weight": 0.7}, {"path": "code", "weight": 0.3}]
    two = words_of(resolve("llama3-8b", 8, data=DATA | {"blend": blend}))
    at = two.index("--data-path")
    assert two[at + 1 : at + 6] == ["0.7", "/data/web", "0.3", "/data/code", "--data-cache-path"]


def test_the_padded_vocabulary_is_set(resolve: Any) -> None:
    words = words_of(resolve("llama3-8b", 64, parallelism={"tensorModelParallelSize": 8}))
    assert value(words, "--padded-vocab-size") == "129024"


def test_mock_data_uses_a_null_tokenizer_of_the_models_size(resolve: Any) -> None:
    words = words_of(resolve("llama3-8b", 8))
    assert "--mock-data" in words
    assert value(words, "--tokenizer-type") == "NullTokenizer"
    assert value(words, "--vocab-size") == "128256"


def test_the_cpu_platform_sets_its_flags(resolve: Any) -> None:
    words = words_of(resolve("tiny-gpt", 4, accelerator="cpu"))
    assert value(words, "--transformer-impl") == "local"
    assert value(words, "--distributed-backend") == "gloo"
    assert {"--use-cpu-initialization", "--no-rope-fusion", "--no-persist-layer-norm"} <= set(words)


def test_numbers_are_written_without_loss(resolve: Any) -> None:
    words = words_of(resolve("llama3-8b", 8, training={"lr": 1.23456789e-05, "minLr": 0, "weightDecay": 0.1}))
    assert float(value(words, "--lr")) == 1.23456789e-05
    assert value(words, "--min-lr") == "0"
    assert value(words, "--weight-decay") == "0.1"


def test_additional_flags_are_last_in_alphabetical_order(resolve: Any) -> None:
    given = {"log-throughput": True, "log-progress": False, "offload-modules": ["core_attn", "mlp"]}
    words = words_of(resolve("llama3-8b", 8, megatronArgs=given))
    assert words[-4:] == ["--log-throughput", "--offload-modules", "core_attn", "mlp"]


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("hidden-size", "is set by spec.model.hiddenSize; set spec.model.hiddenSize instead"),
        ("hidden_size", "is set by spec.model.hiddenSize; set that instead"),
        ("hiddenSize", "is set by spec.model.hiddenSize; set that instead"),
        ("asyncSave", "is set by spec.checkpoint.asyncSave; set that instead"),
        ("wandbProject", "is set by spec.tracking.wandb.project; set that instead"),
        ("tensorboard-dir", "is set by spec.tracking.tensorboard; set spec.tracking.tensorboard instead"),
        ("tensorboard-queue-size", "is for a writer of Megatron that the trainer replaces"),
        ("log_throughput", "is not spelled as Megatron spells it; write log-throughput"),
        ("exitSignal", "is reserved for the operator; leave it out"),
        ("LOG-TROUGHPUT", "unknown flag of Megatron; set log-throughput"),
        ("Ω", "unknown flag of Megatron; leave it out"),
        ("--log-throughput", "is written with dashes; write log-throughput"),
        ("save", "is set by spec.checkpoint.volume"),
        ("exit-on-missing-checkpoint", "is reserved for the operator; leave it out"),
        ("log-troughput", "unknown flag of Megatron; set log-throughput"),
        ("manual-gc-interval", "takes one value, but is true; give one value"),
        ("offload-modules", "takes values, but is true; give a list of values"),
        (
            "use-flash-attn",
            "is accepted and ignored by Megatron; leave it out: training.attentionBackend is auto",
        ),
    ],
)
def test_additional_flags_must_be_valid_and_untyped(resolve: Any, flag: str, message: str) -> None:
    with pytest.raises(InvalidRecipeError) as refused:
        plan(resolve("llama3-8b", 8, megatronArgs={flag: True}))
    assert [message in str(error) for error in refused.value.errors] == [True]


@pytest.mark.parametrize(
    "flag", ["main-params-dtype", "exp-avg-dtype", "exp-avg-sq-dtype", "main-grads-dtype"]
)
def test_a_list_where_a_flag_takes_one_value_is_refused(resolve: Any, flag: str) -> None:
    training = {"bf16": True, "usePrecisionAwareOptimizer": True}
    with pytest.raises(InvalidRecipeError, match="takes one value"):
        plan(resolve("llama3-8b", 8, training=training, megatronArgs={flag: ["bf16"]}))


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"model": {"moeAuxLossCoeff": 0.01}}, "spec.model.moeAuxLossCoeff"),
        ({"model": {"kvLoraRank": 512}}, "spec.model.kvLoraRank"),
        ({"model": {"positionEmbeddingType": "none", "rotaryBase": 10000}}, "spec.model.rotaryBase"),
        ({"model": {"mtpLossScalingFactor": 0.1}}, "spec.model.mtpLossScalingFactor"),
        ({"training": {"optimizer": "sgd", "adamBeta2": 0.9}}, "spec.training.adamBeta2"),
        ({"parallelism": {"overlapGradReduce": False, "ddpBucketSize": 1}}, "spec.parallelism.ddpBucketSize"),
    ],
)
def test_a_setting_without_effect_is_rejected(resolve: Any, spec: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRecipeError) as refused:
        plan(resolve("llama3-8b", 8, **spec))
    assert [error.field for error in refused.value.errors if "no effect" in error.message] == [field]


def test_a_catalog_setting_without_effect_is_dropped_with_a_note(resolve: Any) -> None:
    resolved = resolve("llama3-8b", 8, model={"positionEmbeddingType": "none"})
    p = plan(resolved)
    assert "--rotary-base" not in megatron_arguments(resolved, p, "run")
    assert any("model.rotaryBase 500000 of the catalog is dropped" in note for note in p.notes)


def test_no_layers_of_multi_token_prediction_are_no_flags(resolve: Any) -> None:
    assert "--mtp-num-layers" in words_of(resolve("deepseek-v3", 256, "gb200"))
    words = words_of(resolve("deepseek-v3", 256, "gb200", model={"mtpNumLayers": 0}))
    assert not [word for word in words if word.startswith("--mtp")]


def test_full_recomputation_replaces_the_modules_of_a_published_layout(resolve: Any) -> None:
    assert value(words_of(resolve("deepseek-v3", 256, "gb200")), "--recompute-modules") == "mla_up_proj"
    full = {"recomputeGranularity": "full", "recomputeMethod": "uniform", "recomputeNumLayers": 1}
    words = words_of(resolve("deepseek-v3", 256, "gb200", parallelism=full))
    assert value(words, "--recompute-granularity") == "full"
    assert "--recompute-modules" not in words


def test_a_switch_takes_no_value(resolve: Any) -> None:
    with pytest.raises(
        InvalidRecipeError, match="is a switch and takes no value, but is 'yes'; set true, or leave it out"
    ):
        plan(resolve("llama3-8b", 8, megatronArgs={"log-throughput": "yes"}))


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (-1, ["--flag", "-1"]),
        (-0.5, ["--flag", "-0.5"]),
        (-1e-05, ["--flag=-1e-05"]),
        ("-1,0", ["--flag=-1,0"]),
    ],
)
def test_a_negative_value_stays_the_value_of_its_flag(value: str | float, words: list[str]) -> None:
    """argparse takes `-1e-05` and `-1,0` for flags unless they are joined to theirs."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--flag")
    assert passthrough_arguments({"flag": value}) == words
    assert parser.parse_args(words).flag == str(value)
