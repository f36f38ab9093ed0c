"""Chats from their files to what the loss sees, by megatron-prepare and Megatron-Bridge's own dataset."""

import gzip
import importlib.util
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import zstandard
from megatron_contract.exit_codes import ExitCode
from megatron_trainer.data import chats_command
from megatron_trainer.data.preparation_error import PreparationError

from testkit.waiting import wait_until
from tests.trainer.chat_corpus import (
    END,
    GENERATION,
    LLAMA,
    answers,
    lines,
    many,
    openai,
    sharegpt,
    write_tokenizer,
)

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("modelopt") is None,
    reason="what Megatron-Bridge imports is not installed: run make bridge-training",
)
TURNS = ("who are you?", "Zoë, a bot", "and é?", "a letter  with accent")


def words(folder: Path, *paths: str, tokenizer: Path, length: int = 512, **flags: Any) -> list[str]:
    """Arguments of megatron-prepare for the chats at these paths."""
    listed = json.dumps([{"path": path} for path in paths])
    values = {"seq-length": length, "batch": 1, "samples": 1, "split": "100,0"} | {
        name.replace("_", "-"): value for name, value in flags.items()
    }
    found = ["--chats", listed, "--output", f"{folder}/out/chats", "--output-dir", f"{folder}/out"]
    found += ["--tokenizer-dir", str(tokenizer)]
    for name, value in values.items():
        found += [f"--{name}"] if value is True else [f"--{name}", str(value)]
    return found


def prepared(folder: Path) -> dict[str, bytes]:
    return {
        name: (folder / "out" / "chats" / name).read_bytes()
        for name in ("training.jsonl", "validation.jsonl")
    }


def seen(path: Path, tokenizer: Path, length: int, folder: Path) -> list[str]:
    """What the loss counts of each sample, as text: labels of the places whose mask is 1."""
    from megatron.bridge.data.builders.gpt_sft import (
        GPTSFTDatasetConfig,
        build_gpt_sft_split,
        normalize_gpt_sft_dataset_kwargs,
    )
    from megatron.bridge.training.tokenizers.config import TokenizerConfig
    from megatron.core.tokenizers.utils.build_tokenizer import build_tokenizer
    from megatron_trainer.bridge.configuration import preprocessing

    config = GPTSFTDatasetConfig(
        seq_length=length,
        dataset_root=path.parent,
        preprocessing=preprocessing(chats=True),
        dataset_kwargs={"pad_to_max_length": True, "index_mapping_dir": str(folder / "index")},
    )
    wrapped = build_tokenizer(
        TokenizerConfig(tokenizer_type="HuggingFaceTokenizer", tokenizer_model=str(tokenizer))
    )
    dataset = build_gpt_sft_split(
        path,
        tokenizer=wrapped,
        seq_length=length,
        memmap_workers=1,
        seed=1234,
        packed_sequence_size=-1,
        dataset_kwargs=normalize_gpt_sft_dataset_kwargs(config),
    )
    found = []
    for index in range(len(dataset)):
        batch = dataset.collate_fn([dataset[index]])
        assert batch["tokens"].shape == batch["labels"].shape == batch["loss_mask"].shape == (1, length)
        inside = min(len(dataset[index]["input_ids"]) - 2, length - 1)
        assert batch["tokens"][0, 1 : inside + 1].tolist() == batch["labels"][0, :inside].tolist()
        found.append(wrapped.detokenize(batch["labels"][batch["loss_mask"] == 1].tolist()))
    return found


@pytest.fixture(scope="module", params=[LLAMA, GENERATION], ids=["llama", "generation"])
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer"), request.param)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(tmp_path_factory.mktemp("llama"), LLAMA)


@pytest.mark.parametrize("form", [openai, sharegpt])
@pytest.mark.parametrize("system", [None, "answer briefly"])
def test_the_loss_sees_every_answer_and_nothing_else(
    form: Any, system: str | None, tokenizer: Path, tmp_path: Path
) -> None:
    asked = [form(*TURNS, system=system), form(*TURNS[:2]), form(*TURNS[:3], system=system)]
    (tmp_path / "raw.jsonl").write_text(lines(asked))
    chats_command.run(words(tmp_path, f"{tmp_path}/raw.jsonl", tokenizer=tokenizer))
    found = seen(tmp_path / "out/chats/training.jsonl", tokenizer, 512, tmp_path)
    assert found == ["".join(f"{text}{END}" for text in answers(chat)) for chat in asked]


def test_chats_that_users_wrote_for_bridge_are_read_without_preparation(
    tokenizer: Path, tmp_path: Path
) -> None:
    asked = [openai(*TURNS, system="be brief"), sharegpt(*TURNS, system="be brief")]
    (tmp_path / "training.jsonl").write_text(lines(asked))
    found = seen(tmp_path / "training.jsonl", tokenizer, 512, tmp_path)
    assert found == [f"{TURNS[1]}{END}{TURNS[3]}{END}"] * 2


def test_a_longer_chat_is_cut_and_one_without_an_answer_in_a_sample_is_left_out(
    llama: Path, tmp_path: Path
) -> None:
    asked = [openai("q", "a" * 40, "q", "b" * 200), openai("q" * 300, "never reached"), openai("q", "c")]
    (tmp_path / "raw.jsonl").write_text(lines(asked))
    text = chats_command.run(words(tmp_path, f"{tmp_path}/raw.jsonl", tokenizer=llama, length=128))
    assert text.endswith(
        "2 for training, 0 for validation; 1 have no answer within 128 tokens and are left out"
    )
    cut, whole = seen(tmp_path / "out/chats/training.jsonl", llama, 128, tmp_path)
    first, _, second = cut.partition(END)
    assert (first, set(second), whole) == ("a" * 40, {"b"}, f"c{END}")
    assert 0 < len(second) < 200


def test_files_of_all_kinds_and_sources_are_split_in_order(llama: Path, tmp_path: Path) -> None:
    asked = many(30)
    (tmp_path / "a.jsonl").write_text(lines(asked[:10]))
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(lines(asked[10:20]).encode()))
    (tmp_path / "c.jsonl.zst").write_bytes(zstandard.compress(lines(asked[20:]).encode()))
    paths = [f"{tmp_path}/a.jsonl", f"{tmp_path}/b.jsonl.gz", f"{tmp_path}/c.jsonl.zst"]
    chats_command.run(words(tmp_path, *paths, tokenizer=llama, split="80,20"))
    texts = [answers(json.loads(line)) for line in prepared(tmp_path)["training.jsonl"].splitlines()]
    assert texts == [answers(chat) for part in (asked[:8], asked[10:18], asked[20:28]) for chat in part]
    held = [answers(json.loads(line)) for line in prepared(tmp_path)["validation.jsonl"].splitlines()]
    assert held == [answers(chat) for part in (asked[8:10], asked[18:20], asked[28:]) for chat in part]


def test_chats_for_validation_alone_are_not_trained_on_and_the_others_not_held_back(
    llama: Path, tmp_path: Path
) -> None:
    asked = many(30)
    (tmp_path / "a.jsonl").write_text(lines(asked[:20]))
    (tmp_path / "b.jsonl").write_text(lines(asked[20:]))
    given = words(tmp_path, f"{tmp_path}/a.jsonl", f"{tmp_path}/b.jsonl", tokenizer=llama, evaluates=True)
    listed = json.loads(given[1])
    listed[1]["validation"] = True
    given[1] = json.dumps(listed)
    chats_command.run(given)
    found = {
        name: [answers(json.loads(line)) for line in text.splitlines()]
        for name, text in prepared(tmp_path).items()
    }
    assert found["training.jsonl"] == [answers(chat) for chat in asked[:20]]
    assert found["validation.jsonl"] == [answers(chat) for chat in asked[20:]]
    with pytest.raises(PreparationError) as refused:
        chats_command.run([*given, "--batch", "16"])
    assert str(refused.value).startswith(
        "data.sources[1]: 10 chats for validation, and an iteration takes 16; add chats, or set another"
    )


def pod(folder: Path, arguments: list[str], index: int) -> subprocess.Popen[bytes]:
    start = "from megatron_trainer.data import sources; sources.SHARD_BYTES = 900; "
    start += "from megatron_trainer.data.prepare import main; main()"
    return subprocess.Popen(
        [sys.executable, "-c", start, *arguments, "--pods", "2"],
        env=os.environ
        | {"JOB_COMPLETION_INDEX": str(index), "MEGATRON_TERMINATION_LOG": str(folder / f"end-{index}")},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def test_a_killed_pod_leaves_no_trace_in_the_chats(llama: Path, tmp_path: Path) -> None:
    (tmp_path / "raw.jsonl").write_text(lines(many(600)))
    arguments = words(tmp_path, f"{tmp_path}/raw.jsonl", tokenizer=llama, split="90,10")
    victim = pod(tmp_path, arguments, 0)
    objects = tmp_path / "out" / "objects"
    wait_until(
        "three shards",
        lambda: victim.poll() is not None or len([*objects.glob("*/shards-*/*.lengths")]) >= 3,
        interval=0.01,
    )
    assert victim.poll() is None, "it was killed while it had work left"
    victim.send_signal(signal.SIGKILL)
    victim.wait()
    for index in (1, 0):
        assert pod(tmp_path, arguments, index).wait() == 0
    (tmp_path / "alone").mkdir()
    chats_command.run(words(tmp_path / "alone", f"{tmp_path}/raw.jsonl", tokenizer=llama, split="90,10"))
    assert prepared(tmp_path) == prepared(tmp_path / "alone")
    (made,) = objects.iterdir()
    files = ("training.jsonl", "training.jsonl.lines.npy", "validation.jsonl", "validation.jsonl.lines.npy")
    mark, settings, *rest = sorted(path.name for path in made.iterdir())
    assert (mark, rest) == ("done.json", [*files])
    assert settings.startswith("source-")


def test_a_second_recipe_prepares_nothing_of_the_same_chats(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "raw.jsonl").write_text(lines(many(9)))
    arguments = words(tmp_path, f"{tmp_path}/raw.jsonl", tokenizer=llama)
    chats_command.run(arguments)
    before = prepared(tmp_path)
    arguments[arguments.index("--output") + 1] = f"{tmp_path}/out/other"

    def never(*_: object) -> None:
        raise AssertionError("no chat is read again")

    monkeypatch.setattr("megatron_trainer.data.answers.ChatLines.line", never)
    chats_command.run(arguments)
    assert (tmp_path / "out" / "other").resolve() == (tmp_path / "out" / "chats").resolve()
    assert prepared(tmp_path) == before


TOOL = {
    "messages": [
        {"role": "user", "content": "q"},
        {"role": "tool", "content": "42"},
        {"role": "assistant", "content": "a"},
    ]
}

CALL = {
    "messages": [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "a", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]},
    ]
}
CALL_OF_NO_JSON = json.loads(json.dumps(CALL).replace('"arguments": {}', '"arguments": "x"'))


def test_the_loss_sees_arguments_of_tool_calls_that_are_encoded_once(tmp_path: Path) -> None:
    template = GENERATION.replace(
        "{{ m['content'] }}<", "{{ m['tool_calls'][0]['function']['arguments'] | tojson }}<"
    )
    chat = json.loads(json.dumps(CALL).replace('"arguments": {}', json.dumps({"arguments": '{"x":1}'})[1:-1]))
    chat["messages"][1]["content"] = None
    (tmp_path / "raw.jsonl").write_text(lines([chat]))
    folder = write_tokenizer(tmp_path / "tokenizer", template)
    chats_command.run(words(tmp_path, f"{tmp_path}/raw.jsonl", tokenizer=folder))
    assert seen(tmp_path / "out/chats/training.jsonl", folder, 512, tmp_path) == [f'{{"x": 1}}{END}']


@pytest.mark.parametrize(
    ("template", "chat", "problem"),
    [
        (LLAMA, TOOL, "no role tool"),
        (GENERATION, TOOL, "the chat template leaves out the message of tool"),
        (
            GENERATION.replace("'system', ", ""),
            openai("q", "a", system="be brief"),
            "the chat template leaves out the message of system",
        ),
        (LLAMA, CALL_OF_NO_JSON, "the arguments of a call of 'f' are not JSON"),
        (GENERATION, CALL, "the chat template leaves out the tool_calls of a message of assistant"),
        (LLAMA, openai("only a question"), "the loss would count none of its tokens"),
        (LLAMA, {"text": "no chat"}, 'the record has neither "messages" nor "conversations"'),
        (
            "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}",
            openai("q", "a"),
            "the chat template does not mark the answers",
        ),
    ],
)
def test_a_chat_that_cannot_be_learned_from_is_named_by_file_and_line(
    template: str, chat: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    good = [openai("q", "a")] * 2 if "start_header" in template or "[A]" in template else []
    (tmp_path / "raw.jsonl").write_text(lines([*good, chat]))
    folder = write_tokenizer(tmp_path / "tokenizer", template)
    with pytest.raises(PreparationError) as refused:
        chats_command.run(words(tmp_path, f"{tmp_path}/raw.jsonl", tokenizer=folder))
    assert refused.value.code == ExitCode.BAD_DATA
    assert f"{tmp_path}/raw.jsonl:{len(good) + 1}: " in str(refused.value)
    assert problem in str(refused.value)


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (
            {"samples": 25},
            "the run reads 25 chats, and 12 are for training: 3 epochs, at most 1; set data.maxEpochs: 3",
        ),
        ({"batch": 16}, "data.split 100,0 leaves 12 chats to training, and an iteration takes 16"),
        ({"evaluates": True}, "data.split 100,0 leaves 0 chats to validation, and an iteration takes 1"),
        ({"length": 16}, "none of its chats an answer begins within training.seqLength"),
        ({"vocab_size": 100}, "set model.vocabSize"),
    ],
)
def test_what_the_run_reads_is_checked(
    flags: dict[str, Any], problem: str, llama: Path, tmp_path: Path
) -> None:
    (tmp_path / "raw.jsonl").write_text(lines(many(12)))
    with pytest.raises(PreparationError) as refused:
        chats_command.run(words(tmp_path, f"{tmp_path}/raw.jsonl", tokenizer=llama, **flags))
    assert problem in str(refused.value)


def test_a_tokenizer_without_a_chat_template_is_refused(tmp_path: Path) -> None:
    (tmp_path / "raw.jsonl").write_text(lines(many(2)))
    folder = write_tokenizer(tmp_path / "tokenizer", None)
    with pytest.raises(
        PreparationError, match=r"has no chat template, as most base models; add chat_template\.jinja there"
    ):
        chats_command.run(words(tmp_path, f"{tmp_path}/raw.jsonl", tokenizer=folder))


def test_files_that_changed_are_not_prepared_under_the_same_name(llama: Path, tmp_path: Path) -> None:
    (tmp_path / "raw.jsonl").write_text(lines(many(3)))
    arguments = words(tmp_path, f"{tmp_path}/raw.jsonl", tokenizer=llama)
    chats_command.run(arguments)
    (tmp_path / "raw.jsonl").write_text(lines(many(4)))
    with pytest.raises(PreparationError, match=r"set another data\.prepare\.name") as refused:
        chats_command.run(arguments)
    assert f"or data.datasetRoot: {tmp_path}/out/chats with data.examples: chat" in str(refused.value)
