"""Sound and text from the tar files of a WebDataset to fine-tuned models, and their weights out."""

import importlib.util
import io
import json
import os
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from megatron_contract.exit_codes import ExitCode
from megatron_trainer.bridge.sound import Sound, at_rate, decode
from megatron_trainer.data import chats_command
from megatron_trainer.data.preparation_error import PreparationError
from megatron_trainer.weights import cpu_model, huggingface_folder
from megatron_trainer.weights.tensors import records

from testkit.fine_tuned import SOUND_CASES, Case
from testkit.image_text import add_file
from testkit.sound_models import FAMILIES
from testkit.sound_text import RATE, TONES, seconds, tone, wav, write_shards
from testkit.weights.warm import WarmConverter
from tests.trainer.bridge_run import RecipeGang, rendered_preparation
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

LENGTH = 256
SFT = SOUND_CASES[0]
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("av") is None or "MEGATRON_BRIDGE_TRAINING" not in os.environ,
    reason="takes minutes: run make bridge-training",
)


def spec(case: Case, iterations: int, **data: Any) -> dict[str, Any]:
    return recipe(case, "sound", LENGTH, iterations, **data)


@pytest.fixture(scope="module")
def volumes(tmp_path_factory: pytest.TempPathFactory, converter: WarmConverter) -> Volumes:
    """The data volumes of families, with two tar files."""
    return data_volumes(tmp_path_factory.mktemp, converter, FAMILIES, "sound", write_shards)


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_for_sound_are_those_of_transformers_and_the_weights_come_back_bit_for_bit(
    name: str, tmp_path: Path, converter: WarmConverter
) -> None:
    found = converter.prove_sound(name, tmp_path)

    assert found["difference"] < 1e-5
    assert found["of other sounds"] > 0.01
    assert found["identical files"] is True


@pytest.mark.parametrize("name", FAMILIES)
def test_the_loss_counts_the_answers_alone_and_every_sound_is_its_own(name: str, volumes: Volumes) -> None:
    case = next(case for case in SOUND_CASES if case.family == name)
    volume = volumes(name)
    root = prepare(spec(case, ITERATIONS), volume)
    from megatron_trainer.bridge import image_text

    processor = image_text.load_processor(str(volume / "model"))
    for number in range(SAMPLES):
        file = "training.jsonl" if number < 18 else "validation.jsonl"
        example = image_text.sample(root / file, number % 18)
        batch = image_text.collate([example], processor, LENGTH)
        counted = batch["labels"][0][batch["loss_mask"][0] > 0]
        answer = list(TONES)[number % len(TONES)]
        assert processor.tokenizer.decode(counted) == f"{answer}{FAMILIES[name].end}"
        heard = example["conversation"][0]["content"][0]["audio"]
        assert np.abs(heard.samples - tone(answer, seconds(number))).max() < 1e-4


def test_every_answer_of_a_conversation_counts_and_no_question(volumes: Volumes) -> None:
    cpu_model.import_bridge()
    from megatron_trainer.bridge import image_text

    processor = image_text.load_processor(str(volumes(SFT.family) / "model"))
    turns = [
        (
            "user",
            [{"type": "audio", "audio": Sound(tone("low", 0.5), RATE)}, {"type": "text", "text": "one?"}],
        ),
        ("assistant", [{"type": "text", "text": "low"}]),
        (
            "user",
            [{"type": "audio", "audio": Sound(tone("high", 1.5), RATE)}, {"type": "text", "text": "two?"}],
        ),
        ("assistant", [{"type": "text", "text": "high"}]),
        ("user", [{"type": "text", "text": "was one low?"}]),
        ("assistant", [{"type": "text", "text": "yes"}]),
    ]
    example = {"conversation": [{"role": role, "content": content} for role, content in turns]}
    silent = {"conversation": [{"role": role, "content": content} for role, content in turns[4:]]}
    batch = image_text.collate([example, silent], processor, LENGTH)

    counted = [
        processor.tokenizer.decode(labels[mask > 0])
        for labels, mask in zip(batch["labels"], batch["loss_mask"], strict=True)
    ]
    assert counted == ["low<|im_end|>\nhigh<|im_end|>\nyes<|im_end|>\n", "yes<|im_end|>\n"]
    assert len(batch["visual_inputs"].input_features) == 2


def whole_sample(**files: bytes) -> dict[str, bytes]:
    """Files of a sample of which nothing is wrong but what is given by its ending."""
    turns = [{"role": "user", "content": "<audio>"}, {"role": "assistant", "content": "low"}]
    given = {f"0.{ending}": data for ending, data in files.items()}
    return {"0.json": json.dumps({"messages": turns}).encode(), **(given or {"0.wav": wav(tone("low", 0.5))})}


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        ({"0.wav": b""}, "sample 0 has no 0.json beside its other files"),
        ({"0.json": b'{"messages": [{"role": "user", "content": "<audio>?"}]}'}, "it names 1 sounds"),
        (whole_sample(png=b""), "0.png is neither json nor a sound (flac, mp3, wav)"),
        (whole_sample(wav=b"no sound"), "0.json: "),
        (whole_sample(wav=wav(tone("low", 2.5))), "the sound is 2.50 s long, and the model takes 2 s"),
        (whole_sample(wav=wav(tone("low", 0.05))), "the sound is 0.050 s long, and 0.1 s is the shortest"),
        (
            {
                "0.json": b'{"messages": [{"role": "user", "content": "<audio>"}]}',
                "0.wav": wav(tone("low", 0.5)),
            },
            "it has no answer of the assistant",
        ),
    ],
)
def test_a_sample_that_is_not_learned_from_ends_the_preparation_with_its_name(
    files: dict[str, bytes], problem: str, volumes: Volumes, tmp_path: Path
) -> None:
    (tmp_path / "model").symlink_to(volumes(SFT.family) / "model")
    (tmp_path / "sound").mkdir()
    with tarfile.open(tmp_path / "sound" / "broken.tar", "w") as tar:
        for name, data in files.items():
            add_file(tar, name, data)
    with pytest.raises(PreparationError) as raised:
        chats_command.run(rendered_preparation(spec(SFT, ITERATIONS), tmp_path))
    assert raised.value.code == ExitCode.BAD_DATA
    assert f"data.sources[0].path: {tmp_path}/sound/broken.tar" in str(raised.value)
    assert problem in str(raised.value)


def encoded(samples: np.ndarray, rate: int, kind: str, codec: str, layout: str) -> bytes:
    """A file of this format of FFmpeg; `samples` [channels, samples]."""
    import av

    stream = io.BytesIO()
    with av.open(stream, "w", format=kind) as container:
        track: Any = container.add_stream(codec, rate=rate)
        track.layout = layout
        frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(samples), format="fltp", layout=layout)
        frame.sample_rate = rate
        size = track.codec_context.frame_size or None
        resampler = av.AudioResampler(track.codec_context.format, layout, rate, frame_size=size)
        for part in [*resampler.resample(frame), *resampler.resample(None)]:
            container.mux(track.encode(part))
        container.mux(track.encode(None))
    return stream.getvalue()


@pytest.mark.parametrize(
    ("kind", "codec", "close"),
    [("wav", "pcm_s16le", 1e-4), ("flac", "flac", 1e-4), ("mp3", "libmp3lame", 0.1)],
)
def test_sound_of_each_format_is_the_mean_of_its_channels(kind: str, codec: str, close: float) -> None:
    low, high = tone("low", 0.5), tone("high", 0.5)
    heard = decode(encoded(np.stack([low, high]), RATE, kind, codec, "stereo"))

    assert heard.rate == RATE
    assert len(heard.samples) == len(low)
    assert np.abs(heard.samples - (low + high) / 2).max() < close


@pytest.mark.parametrize("rate", [8000, 22050, 44100, 48000])
def test_sound_of_another_rate_keeps_its_tone(rate: int) -> None:
    found = at_rate(decode(wav(tone("high", 1.0, rate), rate)), RATE)

    assert len(found) == RATE
    # Its ends are cut off, where the filter has no neighbours.
    assert np.abs(found - tone("high", 1.0))[800:-800].max() < 2e-3


def test_a_file_of_another_format_is_an_error_and_not_opened() -> None:
    """FFmpeg reads playlists too, and what they name."""
    playlist = b"#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9.0,\nfile:///etc/hostname\n#EXT-X-ENDLIST\n"
    other = encoded(tone("low", 0.5)[None], RATE, "adts", "aac", "mono")
    for data in (playlist, other, b"no sound"):
        with pytest.raises(ValueError, match="the file is none of flac, mp3, wav"):
            decode(data)


@pytest.mark.parametrize("at", [-100, -4000])
def test_a_damaged_flac_file_is_an_error(at: int) -> None:
    whole = encoded(tone("shrill", 1.0)[None], RATE, "flac", "flac", "mono")
    with pytest.raises(ValueError, match=r"Invalid data|fewer samples than its header states"):
        decode(whole[:at] + bytes([whole[at] ^ 255]) + whole[at + 1 :])


def test_a_tar_file_that_was_rewritten_since_it_was_prepared_is_an_error_that_names_it(
    volumes: Volumes, tmp_path: Path
) -> None:
    cpu_model.import_bridge()
    from megatron_trainer.bridge import image_text
    from megatron_trainer.bridge.sample_files import SampleLineError

    (tmp_path / "model").symlink_to(volumes(SFT.family) / "model")
    write_shards(tmp_path / "sound", 2, SAMPLES // 2)
    root = prepare(spec(SFT, ITERATIONS), tmp_path)
    first = tmp_path / "sound" / "00000.tar"
    first.write_bytes((tmp_path / "sound" / "00001.tar").read_bytes())

    with pytest.raises(SampleLineError) as raised:
        image_text.sample(root / "training.jsonl", 0)
    assert (
        f"training.jsonl:1: {first} has changed since it was prepared: byte 512 begins another sound"
        in str(raised.value)
    )


def test_a_killed_run_resumes_with_the_losses_of_an_undisturbed_one(
    volumes: Volumes, tmp_path_factory: pytest.TempPathFactory, warm_bridge: WarmProcess
) -> None:
    volume = volumes(SFT.family)
    undisturbed_and_killed(spec(SFT, ITERATIONS), spec(SFT, 100), volume, tmp_path_factory, warm_bridge)


@pytest.mark.parametrize(
    ("case", "data"),
    [*((case, {}) for case in SOUND_CASES), (SFT, {"mockData": True})],
    ids=lambda value: name_of(value) if isinstance(value, Case) else str(value),
)
def test_a_model_is_trained_on_sound_and_exported(
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
    ended = converter.convert(
        "export", "--from", run.save, "--to", target, "--base", source, log=run.save.parent / "log"
    )
    assert ended.code == 0, ended.output
    before, after = (
        records(huggingface_folder.read(folder, "", weights=True).tensors()) for folder in (source, target)
    )
    assert before.keys() == after.keys()
    changed = {name.partition(".")[0] for name in before if before[name] != after[name]}
    adapted = case.recipe.endswith("-lora")
    assert changed == {"language_model"} | (set() if adapted else {"audio_tower", "multi_modal_projector"})
    # Positions of sound are fixed.
    positions = "audio_tower.embed_positions.weight"
    assert before[positions] == after[positions]
    found = converter.prove_sound_run(run.save, source, target, run.save.parent / "logits.json")
    # Weights merged into those of bfloat16 are rounded to it.
    assert found["difference"] < (0.01 if adapted else 1e-5)
