"""The operator trains by Megatron-Bridge what was trained, and what it fine-tunes converts."""

from pathlib import Path

import pytest
from megatron_operator import catalog
from megatron_operator.api.platform import AcceleratorProfile
from megatron_operator.catalog import Entry, bridge_support
from megatron_trainer.weights.cpu_model import CONVERTS

from testkit.fine_tuned import CASES, FROZEN_CASES, IMAGE_CASES, NEMOTRON_CASES, OMNI_CASES, SOUND_CASES
from testkit.image_models import FAMILIES
from testkit.nemotron import FAMILIES as NEMOTRON_FAMILIES
from testkit.omni_text import FAMILIES as OMNI_FAMILIES
from testkit.own_loop import CASES as TRAINED_BY_OWN_LOOP
from testkit.own_loop import IMPORTED
from testkit.pretrained import CASES as PRETRAINED
from testkit.sound_models import FAMILIES as SOUND_FAMILIES
from testkit.weights.families import by_name

PAGE = Path(__file__).parents[3] / "docs" / "weights.md"
OF_BRIDGE = [entry for entry in catalog.load() if entry.engine == "bridge" and not entry.planned_only]
ON_CPUS = [entry.on(AcceleratorProfile(platform="cpu")) for entry in OF_BRIDGE]


def architecture(entry: Entry) -> str:
    return bridge_support.architecture(str(entry.layouts[0].function))


def test_only_models_whose_weights_convert_are_started() -> None:
    assert set(CONVERTS) >= bridge_support.STARTED


@pytest.mark.parametrize("mode", ["sft", "lora"])
def test_every_model_that_is_started_is_trained_in_each_mode_of_its_recipes(mode: str) -> None:
    entries = {entry.name: entry for entry in OF_BRIDGE}
    with_recipes = {architecture(entry) for entry in ON_CPUS if entry.starts and entry.modes[0] == mode}
    trained = {
        architecture(entries[x.recipe]): by_name(x.family).architecture
        for x in CASES
        if entries[x.recipe].modes[0] == mode
    }
    read = bridge_support.READ_IMAGES | bridge_support.READ_SOUND | bridge_support.READ_BOTH
    fine_tuned = (bridge_support.STARTED - read) & with_recipes
    assert trained == {name: name for name in fine_tuned}


@pytest.mark.parametrize("mode", ["sft", "lora"])
def test_every_model_that_reads_images_is_trained_on_them_in_both_modes(mode: str) -> None:
    entries = {entry.name: entry for entry in OF_BRIDGE}
    trained = {
        architecture(entries[x.recipe]): (FAMILIES | NEMOTRON_FAMILIES)[x.family].architecture
        for x in IMAGE_CASES + NEMOTRON_CASES
        if entries[x.recipe].modes[0] == mode and entries[x.recipe].media == "images"
    }

    with_recipes = {architecture(entry) for entry in OF_BRIDGE if entry.modes[0] == mode}
    assert trained == {name: name for name in bridge_support.READ_IMAGES & with_recipes}


@pytest.mark.parametrize("mode", ["sft", "lora"])
def test_every_model_that_takes_sound_is_trained_on_it_in_both_modes(mode: str) -> None:
    entries = {entry.name: entry for entry in OF_BRIDGE}
    trained = {
        architecture(entries[x.recipe]): SOUND_FAMILIES[x.family].architecture
        for x in SOUND_CASES
        if entries[x.recipe].modes[0] == mode
    }

    assert trained == {name: name for name in bridge_support.READ_SOUND}


def test_every_model_that_reads_images_and_takes_sound_is_trained_on_both() -> None:
    entries = {entry.name: entry for entry in OF_BRIDGE}
    trained = {
        architecture(entries[x.recipe]): (OMNI_FAMILIES | NEMOTRON_FAMILIES)[x.family].architecture
        for x in OMNI_CASES + NEMOTRON_CASES
        if entries[x.recipe].media == "media"
    }

    assert trained == {name: name for name in bridge_support.READ_BOTH}


def test_the_projector_of_every_model_whose_recipe_trains_it_alone_was_trained() -> None:
    entries = {entry.name: entry for entry in OF_BRIDGE}
    trained = {
        architecture(entries[x.recipe]): FAMILIES[x.family].architecture
        for x in FROZEN_CASES
        if entries[x.recipe].aligns_projector
    }
    assert trained == {name: name for name in {architecture(x) for x in OF_BRIDGE if x.aligns_projector}}


def test_parts_are_frozen_of_models_that_were_trained_so() -> None:
    assert {FAMILIES[case.family].architecture for case in FROZEN_CASES} == bridge_support.FROZEN_IN_PARTS


def test_no_recipe_fine_tunes_a_model_that_the_page_of_weights_refuses() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if "refused: other logits |" in line]
    refused = {row.split("`")[1] for row in rows}
    assert "Ernie4_5_MoeForCausalLM" in refused
    assert not refused & {architecture(entry) for entry in OF_BRIDGE if entry.modes != ("pretrain",)}


def test_a_small_model_of_each_family_of_the_own_loop_that_converts_was_imported() -> None:
    own = {entry.name: entry for entry in catalog.load() if entry.engine == "megatron"}
    converted = {entry.family for entry in own.values() if not obstacle_of(entry)}
    tried = {own[case.recipe].family for case in TRAINED_BY_OWN_LOOP + IMPORTED}
    # The layers of Llama 2 are those of Llama 3; those of gpt3-15b-8t are those of Nemotron-4.
    assert converted == tried | {"llama2", "gpt3", "tiny"}
    assert {by_name(case.family).architecture for case in TRAINED_BY_OWN_LOOP + IMPORTED} <= set(CONVERTS)


def test_recipes_of_the_own_loop_are_refused_for_what_is_in_the_way() -> None:
    refused: dict[str, list[str]] = {}
    for entry in catalog.load():
        if entry.engine == "megatron" and (reason := obstacle_of(entry)):
            refused.setdefault(reason, []).append(entry.name)
    assert {reason: len(names) for reason, names in refused.items()} == {
        "its layers are those of GPT-2, unknown to Megatron-Bridge 0.6.2": 14,
        "its experts are chosen by softmax scores with a bias, which Megatron Core does not have": 2,
        "it takes groups of experts by the best of each, and Megatron Core by sums of the best two": 1,
        "its class is not in transformers, and no small model of it was converted": 3,
        "transformers has no model with these layers": 1,
    }


def obstacle_of(entry: Entry) -> str:
    return bridge_support.conversion_obstacle(entry.family, entry.model)


def test_every_function_that_fine_tunes_has_a_known_model() -> None:
    unknown = {entry.name for entry in OF_BRIDGE if entry.obstacle == "its model is not known"}
    assert unknown == set()


@pytest.mark.parametrize("entry", [x for x in ON_CPUS if x.starts], ids=lambda entry: entry.name)
def test_a_recipe_that_is_started_has_a_function_that_is(entry: Entry) -> None:
    assert [layout for layout in entry.layouts if entry.can_start(layout)]


def test_a_small_model_of_every_architecture_that_is_pretrained_was_trained() -> None:
    pretrained = {
        architecture(entry)
        for entry in ON_CPUS
        if entry.starts and not entry.fine_tunes and not entry.reads_latents
    }
    entries = {entry.name: entry for entry in OF_BRIDGE}

    assert {case.architecture for case in PRETRAINED} == pretrained
    assert {case.recipe: architecture(entries[case.recipe]) for case in PRETRAINED} == {
        case.recipe: case.architecture for case in PRETRAINED
    }


def test_only_models_with_kernels_of_their_own_start_on_fewer_accelerators_than_cpus() -> None:
    kernels = {entry.name for entry in ON_CPUS if entry.starts} - {x.name for x in OF_BRIDGE if x.starts}
    hybrid = {entry.name for entry in OF_BRIDGE if entry.model.hybrid_layer_pattern}
    gated = {entry.name for entry in OF_BRIDGE if entry.model.linear_attention_freq and not entry.model.tower}
    images = {
        entry.name
        for entry in OF_BRIDGE
        if entry.model.linear_attention_freq and entry.fine_tunes and entry.model.tower
    }
    sparse = {"glm5.1-sft", "glm5.2", "glm5.2-sft", "glm5.2-lora"}
    beside = {entry.name for entry in OF_BRIDGE if entry.model.mamba_beside_attention}
    assert kernels == hybrid | gated | images | sparse | beside
    assert len(beside) == 6
    assert len(hybrid) == 37
    assert len(gated) == 4
    assert len(images) == 21
