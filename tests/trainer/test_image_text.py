"""Images and text from the tar files of a WebDataset to fine-tuned models, and their weights out."""

import importlib.util
import io
import json
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest
from megatron_contract.exit_codes import ExitCode
from megatron_trainer.data import chats_command
from megatron_trainer.data.preparation_error import PreparationError
from megatron_trainer.weights import checkpoint, cpu_model, huggingface_folder
from megatron_trainer.weights.tensors import records
from PIL import ExifTags, Image
from safetensors.torch import load_file, save_file

from testkit.fine_tuned import IMAGE_CASES, Case
from testkit.image_models import FAMILIES
from testkit.image_text import COLOURS, add_file, write_shards
from testkit.weights.warm import WarmConverter
from tests.trainer.bridge_run import RecipeGang, in_float32, rendered_preparation
from tests.trainer.sample_runs import (
    ITERATIONS,
    SAMPLES,
    SAVED_EVERY,
    Volumes,
    data_volumes,
    name_of,
    prepare,
    recipe,
    trained,
    undisturbed_and_killed,
)
from tests.trainer.warm_process import WarmProcess

LENGTH = 512
SFT = IMAGE_CASES[0]
KILLED = [case for case in IMAGE_CASES if case.recipe in ("qwen2.5-vl-3b-sft", "qwen3-vl-8b-sft")][:2]
KILLED += [case for case in IMAGE_CASES if case.recipe == "kimi-k2.5-vl-sft"][:1]
KILLED += [case for case in IMAGE_CASES if case.recipe == "step3.7-flash-sft"][:1]
KILLED += [case for case in IMAGE_CASES if case.recipe == "gemma4-vl-31b-sft"]
UNDISTURBED = [case for case in IMAGE_CASES if case not in KILLED]
MEGATRON_TOWERS = {name for name in FAMILIES if name.startswith(("Qwen3", "EXAONE"))}
"""Vision towers of Megatron's layers, which LoRA adapts too; the others are of transformers."""
WITH_EXPERTS = {"Qwen3-VL-MoE", "Qwen3.5-VL-MoE", "GLM-4.5V", "Gemma 4 VL"}
"""Models whose adapters are on attention alone."""
PREDICTING = {name for name in FAMILIES if name.startswith(("Qwen3.5", "EXAONE"))}
"""Those with a layer of multi-token prediction."""
CLOSE = {name: 1e-4 for name in FAMILIES if name.startswith("Qwen3")}
"""Largest difference of logits, if not 1e-5: Bridge approximates the GELU behind the vision tower."""
ROUTED_OTHERWISE = {"Gemma 4 VL"}
"""Families whose merged adapters, rounded to bfloat16, send tokens to other experts."""
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("qwen_vl_utils") is None or "MEGATRON_BRIDGE_TRAINING" not in os.environ,
    reason="takes minutes: run make bridge-training",
)


def whole_sample() -> dict[str, bytes]:
    """Files of a sample of which nothing is wrong."""
    picture = io.BytesIO()
    Image.new("RGB", (56, 56)).save(picture, "png")
    turns = [{"role": "user", "content": "<image>"}, {"role": "assistant", "content": "red"}]
    return {"0.json": json.dumps({"messages": turns}).encode(), "0.png": picture.getvalue()}


def spec(case: Case, iterations: int, **data: Any) -> dict[str, Any]:
    return recipe(case, "images", LENGTH, iterations, **data)


@pytest.fixture(scope="module")
def volumes(tmp_path_factory: pytest.TempPathFactory, converter: WarmConverter) -> Volumes:
    """The data volumes of families, with two tar files."""
    return data_volumes(tmp_path_factory.mktemp, converter, FAMILIES, "images", write_shards)


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_for_pictures_are_those_of_transformers_and_the_weights_come_back_bit_for_bit(
    name: str, tmp_path: Path, converter: WarmConverter
) -> None:
    found = converter.prove_images(name, tmp_path)

    assert found["difference"] < CLOSE.get(name, 1e-5)
    assert found["of other pictures"] > 0.1
    assert found["identical files"] is True


def test_weights_without_a_stated_layer_of_prediction_are_refused_until_config_json_states_none(
    tmp_path: Path, converter: WarmConverter
) -> None:
    model = tmp_path / "model"
    FAMILIES["Qwen3.5-VL"].write(model)
    weights = load_file(model / "model.safetensors")
    save_file({name: x for name, x in weights.items() if "mtp." not in name}, model / "model.safetensors")
    words = ("import", "--from", model, "--to", tmp_path / "weights")

    refused = converter.convert(*words, log=tmp_path / "log")
    settings = json.loads((model / "config.json").read_text())
    settings["text_config"]["mtp_num_hidden_layers"] = 0
    (model / "config.json").write_text(json.dumps(settings))
    ended = converter.convert(*words, log=tmp_path / "log")

    assert "do not fit its config.json: nothing for language_model.mtp.layers.0." in refused.output
    assert ended.code == 0, ended.output


@pytest.mark.parametrize("name", FAMILIES)
def test_the_loss_counts_the_answers_alone_and_every_picture_is_its_own(name: str, volumes: Volumes) -> None:
    case = next(case for case in IMAGE_CASES if case.family == name)
    volume = volumes(name)
    root = prepare(spec(case, ITERATIONS), volume)
    from megatron_trainer.bridge import image_text

    processor = image_text.load_processor(str(volume / "model"))
    lines = [
        *(root / "training.jsonl").read_text().splitlines(),
        *(root / "validation.jsonl").read_text().splitlines(),
    ]
    for number in range(len(lines)):
        file = "training.jsonl" if number < 18 else "validation.jsonl"
        example = image_text.sample(root / file, number % 18)
        batch = image_text.collate([example], processor, LENGTH)
        counted = batch["labels"][0][batch["loss_mask"][0] > 0]
        colour = list(COLOURS)[number % len(COLOURS)]
        assert processor.tokenizer.decode(counted) == f"{colour}{FAMILIES[name].end}"
        picture = example["conversation"][0]["content"][0]["image"]
        assert picture.size == (56 + number, 84)
        assert picture.getpixel((0, 0)) == COLOURS[colour]


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        ({"0.png": b""}, "sample 0 has no 0.json beside its other files"),
        ({"0.json": b'{"messages": [{"role": "user", "content": "<image>?"}]}'}, "it names 1 images"),
        ({"0.json": b"{"}, "0.json: Expecting property name"),
        ({**whole_sample(), "1.png": b""}, "broken.tar: sample 1 has no 1.json beside its other files"),
        ({"0.json": b"{}", "0.mp4": b""}, "0.mp4 is neither json nor an image"),
        (
            {
                "0.json": b'{"messages": [{"role": "user", "content": "<image>"},'
                b' {"role": "assistant", "content": "a"}]}',
                "0.png": b"no picture",
            },
            "0.json: cannot identify image file",
        ),
    ],
)
def test_a_sample_that_is_not_whole_ends_the_preparation_with_its_name(
    files: dict[str, bytes], problem: str, volumes: Volumes, tmp_path: Path
) -> None:
    (tmp_path / "model").symlink_to(volumes(SFT.family) / "model")
    (tmp_path / "images").mkdir()
    with tarfile.open(tmp_path / "images" / "broken.tar", "w") as tar:
        for name, data in files.items():
            add_file(tar, name, data)
    words = rendered_preparation(spec(SFT, ITERATIONS), tmp_path)
    with pytest.raises(PreparationError) as raised:
        chats_command.run(words)
    assert raised.value.code == ExitCode.BAD_DATA
    assert f"data.sources[0].path: {tmp_path}/images/broken.tar" in str(raised.value)
    assert problem in str(raised.value)


def test_a_conversation_without_an_answer_is_refused_for_the_reason_of_any_model(
    volumes: Volumes, tmp_path: Path
) -> None:
    case = next(case for case in IMAGE_CASES if case.family == "Ministral 3")
    (tmp_path / "model").symlink_to(volumes(case.family) / "model")
    (tmp_path / "images").mkdir()
    record = {"messages": [{"role": "user", "content": "<image> what is it?"}]}
    with tarfile.open(tmp_path / "images" / "asked.tar", "w") as tar:
        for name, data in (whole_sample() | {"0.json": json.dumps(record).encode()}).items():
            add_file(tar, name, data)

    with pytest.raises(PreparationError, match="it has no answer of the assistant"):
        chats_command.run(rendered_preparation(spec(case, ITERATIONS), tmp_path))


def test_norms_have_the_names_in_checkpoints_that_layers_of_a_gpu_give_them(volumes: Volumes) -> None:
    names = checkpoint.names(checkpoint.find(volumes("Qwen3-VL-MoE") / "weights", "--from"))

    assert {name for name in names if ".layers." in name and "norm" in name} == {
        "language_model.decoder.layers.pre_mlp_layernorm.weight",
        *(f"language_model.decoder.layers.self_attention.{part}_layernorm.weight" for part in "qk"),
        "language_model.decoder.layers.self_attention.linear_qkv.layer_norm_weight",
        *(f"vision_model.decoder.layers.mlp.linear_fc1.layer_norm_{kind}" for kind in ("weight", "bias")),
        *(
            f"vision_model.decoder.layers.self_attention.linear_qkv.layer_norm_{kind}"
            for kind in ("weight", "bias")
        ),
    }


def turned_picture() -> bytes:
    """A red JPEG of 56 x 84 pixels, of which a camera noted that it was turned by a quarter."""
    picture, exif = io.BytesIO(), Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    Image.new("RGB", (56, 84), COLOURS["red"]).save(picture, "jpeg", exif=exif)
    return picture.getvalue()


def test_a_picture_of_a_turned_camera_is_the_right_way_up(tmp_path: Path) -> None:
    cpu_model.import_bridge()
    from megatron_trainer.bridge import image_text

    (tmp_path / "turned.jpg").write_bytes(turned_picture())
    part = {"type": "image", "tar": str(tmp_path / "turned.jpg"), "offset": 0, "size": len(turned_picture())}
    part["crc32"] = image_text.checksum(part)
    (message,) = image_text.load_media([{"role": "user", "content": [part]}])

    assert message["content"][0]["image"].size == (84, 56)


def test_a_tar_file_that_was_rewritten_since_it_was_prepared_is_an_error_that_names_it(
    volumes: Volumes, tmp_path: Path
) -> None:
    cpu_model.import_bridge()
    from megatron_trainer.bridge import image_text
    from megatron_trainer.bridge.sample_files import SampleLineError

    (tmp_path / "model").symlink_to(volumes(SFT.family) / "model")
    write_shards(tmp_path / "images", 2, SAMPLES // 2)
    root = prepare(spec(SFT, ITERATIONS), tmp_path)
    first = tmp_path / "images" / "00000.tar"
    image_text.sample(root / "training.jsonl", 0)
    first.write_bytes((tmp_path / "images" / "00001.tar").read_bytes())

    with pytest.raises(SampleLineError) as raised:
        image_text.sample(root / "training.jsonl", 0)
    assert f"training.jsonl:1: {first} has changed since it was prepared: byte 512 begins" in str(
        raised.value
    )
    assert "set another data.prepare.name" in str(raised.value)


@pytest.mark.parametrize("case", KILLED, ids=name_of)
def test_a_killed_run_resumes_with_the_losses_of_an_undisturbed_one_and_is_exported(
    case: Case,
    volumes: Volumes,
    tmp_path_factory: pytest.TempPathFactory,
    warm_bridge: WarmProcess,
    converter: WarmConverter,
) -> None:
    volume = volumes(case.family)
    undisturbed = undisturbed_and_killed(
        spec(case, ITERATIONS), spec(case, 100), volume, tmp_path_factory, warm_bridge
    )
    assert_exported(undisturbed, case, volume, converter)


@pytest.mark.parametrize(
    ("case", "data"),
    [*((case, {}) for case in UNDISTURBED), (UNDISTURBED[0], {"mockData": True})],
    ids=lambda value: name_of(value) if isinstance(value, Case) else str(value),
)
def test_a_model_is_trained_on_pictures_and_exported(
    case: Case,
    data: dict[str, Any],
    volumes: Volumes,
    tmp_path: Path,
    warm_bridge: WarmProcess,
    converter: WarmConverter,
) -> None:
    volume = volumes(case.family)
    run = trained(spec(case, SAVED_EVERY), data, volume, tmp_path, warm_bridge)
    assert_exported(run, case, volume, converter)


def assert_exported(run: RecipeGang, case: Case, volume: Path, converter: WarmConverter) -> None:
    """Export the weights of a run: they are those that it trained, and have changed where it trains."""
    target, source = run.save.parent / "exported", volume / "model"
    if case.family in ROUTED_OTHERWISE:
        source = in_float32(source, run.save.parent / "base")
    ended = converter.convert(
        "export", "--from", run.save, "--to", target, "--base", source, log=run.save.parent / "log"
    )
    assert ended.code == 0, ended.output
    before, after = (
        records(huggingface_folder.read(folder, "", weights=True).tensors()) for folder in (source, target)
    )
    assert before.keys() == after.keys()
    changes = {name for name in before if before[name] != after[name]}
    changed = {_part(name) for name in changes}
    adapted = case.recipe.endswith("-lora")
    parts = {"text", "vision"} if case.family in MEGATRON_TOWERS or not adapted else {"text"}
    assert changed == (parts | {"prediction"} if case.family in PREDICTING else parts)
    # What selects blocks of a sequence is not trained.
    assert not [name for name in changes if ".index_" in name]
    if adapted and case.family in WITH_EXPERTS:
        assert not [name for name in changes if "mlp" in name]
    found = converter.prove_image_run(run.save, source, target, run.save.parent / "logits.json")
    # Weights merged into those of bfloat16 are rounded to it.
    rounded = adapted and case.family not in ROUTED_OTHERWISE
    assert found["difference"] < (0.01 if rounded else CLOSE.get(case.family, 1e-5))


def _part(name: str) -> str:
    if name.startswith("mtp."):
        return "prediction"
    return "vision" if "visual" in name or "vision" in name or "projector" in name else "text"
