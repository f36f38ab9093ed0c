"""The catalog's tables of Megatron-Bridge's functions against what these functions return."""

import importlib.metadata
from pathlib import Path
from typing import Any

import pytest
import yaml
from answers import Wheel
from megatron_operator import catalog
from megatron_operator.api.diagnostics import Diagnostics
from megatron_operator.api.fine_tuning import TARGET_MODULES
from megatron_operator.catalog import PublishedLayout, bridge_support, bridge_tables, performance_options
from megatron_operator.planner.estimate.model_shape import model_shape
from started import ENTRIES, EVERY_SETTING, STARTED, UNKNOWN

CATALOG = catalog.load()
REASONS: dict[str, dict[str, Any]] = yaml.safe_load(Path(__file__).with_name("not_callable.yaml").read_text())
NOT_CALLABLE = {name: reason for reason, group in REASONS.items() for name in group["functions"]}


EVERY = "every setting"
"""How the names of runs end whose recipe has EVERY_SETTING."""
STARTED_NAMES = {words[0] for words in STARTED.values()}


def layout(name: str) -> PublishedLayout:
    """The catalog's settings of a function."""
    found = CATALOG.function(name)
    assert found is not None
    return found


LATER = {name for name in CATALOG.functions() if layout(name).later and not layout(name).own}
NAMES = sorted(CATALOG.functions().keys() - LATER)


def expected(published: PublishedLayout) -> dict[str, Any]:
    """The catalog's settings as `wheel.settings` names them, with defaults filled in."""
    sizes, training = published.parallelism, published.training
    entry = CATALOG.get(str(published.function))
    # Megatron's own loop trains with the entry's.
    trained = {"weight_decay": training.weight_decay} if entry.engine == "bridge" else {}
    if training.optimizer is None:
        of_entry = entry.training.adam_beta2
        trained["adam_beta1"] = entry.training.adam_beta1
        trained["adam_beta2"] = of_entry if training.adam_beta2 is None else training.adam_beta2
    return trained | {
        "tensor_model_parallel_size": sizes.tensor_model_parallel_size,
        "pipeline_model_parallel_size": sizes.pipeline_model_parallel_size,
        "virtual_pipeline_model_parallel_size": sizes.num_virtual_stages_per_pipeline_rank or 1,
        "context_parallel_size": sizes.context_parallel_size,
        "expert_model_parallel_size": sizes.expert_model_parallel_size,
        "expert_tensor_parallel_size": sizes.expert_tensor_parallel_size,
        "sequence_parallel": bool(sizes.sequence_parallel),
        "account_for_embedding": bool(sizes.account_for_embedding_in_pipeline_split),
        "account_for_loss": bool(sizes.account_for_loss_in_pipeline_split),
        "micro_batch_size": training.micro_batch_size,
        "global_batch_size": training.global_batch_size,
        "seq_length": training.seq_length,
        "max_steps": training.train_iters,
        "warmup_iters": training.lr_warmup_iters,
        "decay_iters": training.lr_decay_iters or training.train_iters,
        "lr": training.lr,
        "min_lr": training.min_lr,
        "optimizer": training.optimizer or "adam",
        "lora_dim": published.lora_rank,
        "lora_alpha": published.lora_alpha,
    }


def returned(name: str, settings: dict[str, Any]) -> dict[str, Any]:
    """A function's settings in one normalized form."""
    longest = bridge_support.LONGEST_SEQUENCES.get(bridge_support.architecture(name), settings["seq_length"])
    return settings | {
        "virtual_pipeline_model_parallel_size": settings["virtual_pipeline_model_parallel_size"] or 1,
        "sequence_parallel": bool(settings["sequence_parallel"]),
        "decay_iters": settings["decay_iters"] or settings["max_steps"],
        # Megatron refuses one above lr, which two functions have.
        "min_lr": min(settings["min_lr"], settings["lr"]),
        "seq_length": min(settings["seq_length"], longest) if "_sft_" in name else settings["seq_length"],
    }


def test_the_wheel_is_the_release_of_the_tables() -> None:
    assert importlib.metadata.version("megatron-bridge") == bridge_tables.RELEASE


@pytest.mark.parametrize("name", NAMES)
def test_a_function_returns_the_catalogs_settings(name: str, wheel: Wheel) -> None:
    if name in NOT_CALLABLE:
        assert name in wheel.failed, f"{name} can be called now: take it off not_callable.yaml"
        return
    assert name in wheel.functions, wheel.failed.get(name, "the wheel has no such function")
    settings_of_catalog = expected(layout(name))
    settings = returned(name, wheel.functions[name])
    assert {key: settings[key] for key in settings_of_catalog} == settings_of_catalog


def is_planned_with_its_settings(name: str) -> bool:
    """Functions of Megatron's own loop, and those of estimated models that Bridge's own image runs."""
    entry = CATALOG.get(CATALOG.functions()[name])
    estimated = model_shape(entry.model, Diagnostics()) is not None
    return entry.engine == "megatron" or (estimated and not entry.starts)


FAST = [name for name in NAMES if is_planned_with_its_settings(name)]


def options_of(name: str) -> set[str]:
    """The options of a function's line in the catalog's table, as they are written there."""
    entry = CATALOG.functions()[name]
    for line in CATALOG._tables[entry].text.splitlines():
        words = line.split()
        also = next((word[5:].split(",") for word in words if word.startswith("also=")), [])
        if words and name in (words[0], *also):
            valued = ("grads", "gather", "aware", "flex", "sms", "budget", "stash", "fuser", "graphs", "dsa")
            kinds = tuple(f"{name}=" for name in (*valued, "recompute"))
            return {w for w in words[1:] if w.startswith(kinds) or w in performance_options.BARE}
    raise AssertionError(f"{name} has no line")


@pytest.mark.parametrize("name", FAST)
def test_a_function_has_all_that_makes_it_fast(name: str, wheel: Wheel) -> None:
    if name not in NOT_CALLABLE:
        assert options_of(name) == set(wheel.functions[name]["fast"])


@pytest.mark.parametrize("name", sorted(STARTED_NAMES))
def test_a_started_function_has_the_dispatcher_and_buffers_of_its_line(name: str, wheel: Wheel) -> None:
    kinds = ("flex=", "budget=", "stash=")
    written, found = (
        {word for word in words if word.startswith(kinds)}
        for words in (options_of(name), wheel.functions[name]["fast"])
    )
    assert written == found


@pytest.mark.parametrize("name", sorted(name for name in STARTED_NAMES if bridge_support.reads_images(name)))
def test_a_started_function_freezes_the_parts_that_the_plan_counts_as_frozen(name: str, wheel: Wheel) -> None:
    if layout(name).lora_rank is None:
        assert tuple(wheel.functions[name]["frozen"]) == bridge_support.frozen_parts(name)


def test_the_catalog_has_every_function_of_the_wheel(wheel: Wheel) -> None:
    refusing = {name for name, reason in NOT_CALLABLE.items() if "by design" in reason}
    assert wheel.names - refusing == set(NAMES)


def test_functions_of_a_later_release_are_not_in_the_wheel(wheel: Wheel) -> None:
    assert LATER
    assert not LATER & wheel.names


def test_no_function_of_the_image_stands_in_front_of_one_of_the_wheel(wheel: Wheel) -> None:
    assert wheel.hidden == []


@pytest.mark.parametrize("reason", REASONS)
def test_functions_that_cannot_be_called_fail_for_the_listed_reason(reason: str, wheel: Wheel) -> None:
    group = REASONS[reason]
    assert {name for name, error in wheel.failed.items() if group["error"] in error} == {*group["functions"]}


def test_all_other_functions_can_be_called(wheel: Wheel) -> None:
    assert wheel.failed.keys() == NOT_CALLABLE.keys()


def test_every_option_of_the_command_sets_a_field_that_every_function_has(wheel: Wheel) -> None:
    """`wheel.settings` reads the fields of all options of `planner.bridge.command`, and fails without."""
    options = {"save_dir", "load_dir", "save_interval", "max_steps", "lr"}
    assert all(options <= settings.keys() for settings in wheel.functions.values())
    assert {
        name: settings["lacking"] for name, settings in wheel.functions.items() if settings["lacking"]
    } == {}


def test_every_function_that_the_operator_starts_takes_the_overrides_that_are_rendered(wheel: Wheel) -> None:
    refused = dict(zip(STARTED, wheel.refused, strict=False))

    assert len(STARTED) == 3 * 237
    assert {name: problem for name, problem in refused.items() if problem is not None} == {}


def test_the_decay_of_every_started_function_lasts_as_long_as_the_recipe_trains(wheel: Wheel) -> None:
    lengths = {
        name: (found["decay"], found["samples"])
        for name, found in zip(STARTED, wheel.schedules, strict=False)
        if found is not None and name.endswith(EVERY)
    }

    assert len(lengths) == 237
    assert {name: each for name, each in lengths.items() if each[0] != each[1]} == {}


def test_every_started_function_trains_with_the_weight_decay_of_the_recipe_or_of_the_catalog(
    wheel: Wheel,
) -> None:
    trained = {
        name: found["weight_decay"]
        for name, found in zip(STARTED, wheel.schedules, strict=False)
        if found is not None
    }

    expected = {
        name: EVERY_SETTING["training"]["weightDecay"]
        if name.endswith(EVERY)
        else layout(STARTED[name][0]).training.weight_decay
        for name in trained
    }
    assert trained == expected


def test_a_path_that_no_function_has_would_be_found(wheel: Wheel) -> None:
    assert wheel.refused[-len(UNKNOWN) :] == [
        "train.no_such_field: Megatron-Bridge's configuration has no such field"
    ]


def test_adapters_are_on_the_layers_that_the_catalog_states(wheel: Wheel) -> None:
    startable = [each for entry in ENTRIES for each in filter(entry.can_start, entry.layouts)]
    layouts = [each for each in startable if each.lora_rank]

    assert len(layouts) == 81
    targets = {str(x.function): wheel.functions[str(x.function)]["lora_target_modules"] for x in layouts}
    assert targets == {str(x.function): x.lora_targets or list(TARGET_MODULES) for x in layouts}


def test_functions_ask_for_the_architectures_by_which_the_operator_decides_what_starts(wheel: Wheel) -> None:
    of_bridge = {name for name, entry in CATALOG.functions().items() if CATALOG.get(entry).engine == "bridge"}
    asked = {name: wheel.functions[name]["architectures"] for name in of_bridge & wheel.functions.keys()}
    asking = {name: set(found) for name, found in asked.items() if found}

    # OLMoE's functions have the architecture themselves.
    asked_for = {x for found in asking.values() for x in found} | {"OlmoeForCausalLM"}
    assert asked_for >= bridge_support.STARTED
    pretraining = {name for name in asked if CATALOG.get(CATALOG.functions()[name]).modes == ("pretrain",)}
    readers = {name for name in pretraining if bridge_support.reads_model_folder(name)}
    assert readers & STARTED_NAMES == asking.keys() & pretraining & STARTED_NAMES
    assert asking == {name: {bridge_support.architecture(name)} for name in asking}
