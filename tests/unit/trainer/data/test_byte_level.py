"""tiktoken is used only where its ids are those of Hugging Face tokenizers, on text where they may differ."""

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from megatron_trainer.data import byte_level, tokenizer
from megatron_trainer.data.byte_level import PATTERNS, ByteLevel, ByteLevelError, byte_characters
from megatron_trainer.data.fast_encoder import TRICKY, FastEncoder
from megatron_trainer.data.shards import Encoder
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

from tests.unit.trainer.data.corpus import decoded, lines, prepare, source

EOD = 7
DTYPE = np.dtype(np.int32)
Edit = Callable[[dict[str, Any]], object]


def _fuzz() -> list[str]:
    """Texts of characters and short strings at which splits and merges begin and end."""
    chosen = random.Random(7)
    signs = [
        "a",
        "b",
        "A",
        " ",
        "  ",
        "\n",
        "\r\n",
        "\t",
        "é",
        "e\u0301",
        "1",
        "12",
        "'s",
        "'S",
        ".",
        "the",
        "中",
        "/",
    ]
    every = "".join(TRICKY)
    texts = []
    for number in range(600):
        length = chosen.choice((1, 4, 30, 120))
        if number % 3 == 0:
            texts.append("".join(chosen.choices(every, k=length)))
        elif number % 3 == 1:
            texts.append("".join(chosen.choices(signs, k=length)))
        else:
            points = (chosen.randrange(0x20, 0x33480) for _ in range(length))
            texts.append("".join(chr(point) for point in points if not 0xD800 <= point < 0xE000))
    return texts


FUZZ = _fuzz()


def _split(pattern: str) -> Any:
    if pattern == PATTERNS["GPT-2"]:
        return pre_tokenizers.ByteLevel(add_prefix_space=False)
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def _train(pattern: str) -> Tokenizer:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = _split(pattern)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=900, initial_alphabet=alphabet, show_progress=False)
    made.train_from_iterator([*TRICKY, *FUZZ], trainer)
    return made


def _made_of(pairs: Sequence[tuple[str, str]], **options: Any) -> Tokenizer:
    """All bytes, and tokens of these merges in their order."""
    vocabulary = {character: number for number, character in enumerate(byte_characters())}
    for left, right in pairs:
        vocabulary.setdefault(left + right, len(vocabulary))
    for token in options.pop("whole", ()):
        vocabulary[token] = len(vocabulary)
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=list(pairs), **options))
    made.pre_tokenizer = _split(PATTERNS["GPT-2"])
    return made


def _saved(made: Tokenizer, folder: Path, edit: Edit | None = None) -> Path:
    """The folder, with a tokenizer.json that `edit` has changed."""
    folder.mkdir(exist_ok=True)
    content = json.loads(made.to_str())
    if edit is not None:
        edit(content)
    (folder / "tokenizer.json").write_text(json.dumps(content))
    return folder


def _assert_equal(folder: Path, texts: Sequence[str] = (*TRICKY, *FUZZ)) -> ByteLevel:
    loaded, _ = tokenizer.load(folder)
    made = ByteLevel(folder / "tokenizer.json", loaded, DTYPE)
    for text, encoding in zip(texts, loaded.encode_batch_fast(texts, add_special_tokens=False), strict=True):
        ids = made.encode(text)
        assert ids is not None
        assert ids.tolist() == encoding.ids, text
    return made


@pytest.mark.parametrize("pattern", PATTERNS.values(), ids=PATTERNS)
def test_ids_are_equal_with_each_pattern(tmp_path: Path, pattern: str) -> None:
    runs = [
        (sign * 30000)[:30000] + "x"
        for sign in (" ", "\n", "\t \n", "a", "A", "Aa", "'S", ".", "1", "é", "\u0301")
    ]
    _assert_equal(_saved(_train(pattern), tmp_path), [*TRICKY, *FUZZ, *runs])


@pytest.mark.parametrize("pattern", PATTERNS.values(), ids=PATTERNS)
def test_each_pattern_matches_every_character(pattern: str) -> None:
    split = pre_tokenizers.Split(Regex(pattern), "removed", invert=True)
    text = "".join(map(chr, [*range(0xD800), *range(0xE000, 0x33480), *range(0xE0000, 0xE1000)]))
    assert "".join(piece for piece, _ in split.pre_tokenize_str(text)) == text


def test_a_pattern_is_refused_whose_classes_differ_between_the_libraries() -> None:
    with pytest.raises(ByteLevelError, match=r"differ in the characters of \\p\{Word\}"):
        byte_level.check_classes(r"\p{Word}|\s|\S")


def test_text_is_normalized_to_nfc_where_the_tokenizer_does(tmp_path: Path) -> None:
    made = _train(PATTERNS["Qwen 2"])
    made.normalizer = normalizers.NFC()
    _assert_equal(_saved(made, tmp_path))
    made.normalizer = normalizers.Sequence([normalizers.NFC()])
    _assert_equal(_saved(made, tmp_path))


def test_a_vocabulary_that_has_all_merges_to_each_token_and_takes_whole_pieces(tmp_path: Path) -> None:
    """As that of Llama 3."""
    trained = json.loads(_train(PATTERNS["Llama 3"]).to_str())["model"]["vocab"]
    made = Tokenizer(
        models.BPE(
            vocab=trained,
            merges=[
                (token[:at], token[at:])
                for token in sorted(trained, key=trained.__getitem__)
                for at in range(1, len(token))
                if token[:at] in trained and token[at:] in trained
            ],
            ignore_merges=True,
        )
    )
    made.pre_tokenizer = _split(PATTERNS["Llama 3"])
    _assert_equal(_saved(made, tmp_path))


def test_ids_need_not_be_in_the_order_of_the_merges(tmp_path: Path) -> None:
    def shuffle(content: dict[str, Any]) -> None:
        vocabulary = content["model"]["vocab"]
        numbers = random.Random(3).sample(range(5000), len(vocabulary))
        content["model"]["vocab"] = dict(zip(vocabulary, numbers, strict=True))

    _assert_equal(_saved(_train(PATTERNS["GPT-2"]), tmp_path, shuffle))


def test_a_token_that_no_merges_lead_to_is_not_made(tmp_path: Path) -> None:
    """The bytes b and c are merged first, so that no a and b are left to be merged."""
    made = _made_of([("b", "c"), ("a", "b"), ("ab", "c"), ("d", "e")])
    assert made.encode("abc").tokens == ["a", "bc"]
    _assert_equal(_saved(made, tmp_path), ["abc", "abcabc", " abc", "ab", "de"])


def test_a_token_without_merges_is_made_of_a_whole_piece_only(tmp_path: Path) -> None:
    made = _made_of([("b", "c")], ignore_merges=True, whole=["abcd"])
    assert [made.encode(text).tokens for text in ("abcd", "abcde")] == [["abcd"], ["a", "bc", "d", "e"]]
    _assert_equal(_saved(made, tmp_path), ["abcd", "abcde", "xabcd", " abcd", "abcd.abcd"])


def _step(content: dict[str, Any], kind: str) -> None:
    content["pre_tokenizer"] = {"type": kind, "individual_digits": True, "add_prefix_space": False}


REFUSED: dict[str, tuple[Edit, str]] = {
    "prefix space": (lambda c: c["pre_tokenizer"].update(add_prefix_space=True), "adds a space"),
    "no split": (lambda c: c.update(pre_tokenizer=None), "no pre_tokenizer"),
    "digits": (lambda c: _step(c, "Digits"), "its pre_tokenizer is Digits"),
    "no pattern": (lambda c: c["pre_tokenizer"].update(use_regex=False), "not one of GPT-2"),
    "lower case": (lambda c: c.update(normalizer={"type": "Lowercase"}), "its normalizer is Lowercase"),
    "dropout": (lambda c: c["model"].update(dropout=0.1), "its model has dropout 0.1"),
    "word end": (lambda c: c["model"].update(end_of_word_suffix="</w>"), "end_of_word_suffix"),
    "byte fallback": (lambda c: c["model"].update(byte_fallback=True), "byte_fallback"),
    "missing byte": (lambda c: c["model"]["vocab"].pop("Ġ"), "lacks 1 of the 256 bytes"),
    "merges apart": (
        lambda c: c["model"].update(merges=[["a", "bc"], ["b", "c"], ["ab", "c"]]),
        "not next to each other",
    ),
    "whole pieces of two tokens": (
        lambda c: c["model"].update(ignore_merges=True, merges=[["b", "c"]]),
        "'abc', are only made of whole pieces",
    ),
}


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_a_tokenizer_of_another_kind_is_refused_with_what_it_has(
    tmp_path: Path, case: tuple[Edit, str]
) -> None:
    edit, message = case
    made = _made_of([("b", "c"), ("a", "bc")])
    folder = _saved(made, tmp_path, edit)
    with pytest.raises(ByteLevelError, match=message):
        ByteLevel(folder / "tokenizer.json", made, DTYPE)


@pytest.mark.parametrize("change", [{"behavior": "Removed"}, {"invert": True}, {"pattern": {"String": " "}}])
def test_another_split_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    made = _train(PATTERNS["Llama 3"])
    folder = _saved(made, tmp_path, lambda c: c["pre_tokenizer"]["pretokenizers"][0].update(change))
    with pytest.raises(ByteLevelError, match="text is split"):
        ByteLevel(folder / "tokenizer.json", made, DTYPE)


class Fast:
    """The encoder of a folder beside that of Hugging Face."""

    def __init__(self, folder: Path, threads: int = 1) -> None:
        loaded, _ = tokenizer.load(folder)
        self.exact = Encoder(loaded, 6000, EOD)
        self.log: list[str] = []
        self.encoder = FastEncoder(self.exact, folder, threads, self.log.append)

    def assert_equal(self, texts: Sequence[str]) -> None:
        assert [ids.tolist() for ids in self.encoder.encode(texts)] == [
            ids.tolist() for ids in self.exact.encode(texts)
        ]


@pytest.mark.parametrize("threads", [1, 4])
def test_documents_keep_their_order_whatever_library_and_thread_encodes_them(
    tmp_path: Path, threads: int
) -> None:
    made = _train(PATTERNS["GPT-2"])
    made.add_special_tokens(["<|endoftext|>"])
    made.add_tokens([AddedToken("strip", lstrip=True, rstrip=True), AddedToken("word", single_word=True)])
    fast = Fast(_saved(made, tmp_path), threads)
    texts = ["a <|endoftext|> b", "x  strip  y", "words word", "", "no token", " " * 70000, *FUZZ]
    fast.assert_equal(texts)
    assert fast.encoder.dtype == np.uint16
    [line] = fast.log
    assert line.startswith("encoding with tiktoken")


def test_an_added_token_is_found_before_and_after_normalization(tmp_path: Path) -> None:
    made = _train(PATTERNS["Qwen 2"])
    made.normalizer = normalizers.NFC()
    made.add_tokens([AddedToken("café", normalized=True), AddedToken("e\u0301tude", normalized=False)])
    folder = _saved(made, tmp_path)
    Fast(folder).assert_equal(["a cafe\u0301 b", "café", "e\u0301tude", "étude", *TRICKY])


def test_runs_that_tiktoken_gives_up_on_are_left_to_hugging_face(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast = Fast(_saved(_made_of([("a", "a")]), tmp_path))
    fast.assert_equal([" " * 70_000 + "x", "x" + "\n\t" * 40_000 + "x", "a" * 70_000])
    # Its matcher raises an error at such a run.
    monkeypatch.setattr(byte_level, "_has_long_run", lambda _: False)
    fast.assert_equal([" " * 1_200_000 + "x"])


def test_ids_that_differ_in_the_first_documents_end_the_use_of_tiktoken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast = Fast(_saved(_train(PATTERNS["GPT-2"]), tmp_path))
    encode = ByteLevel.encode
    monkeypatch.setattr(ByteLevel, "encode", lambda own, text: encode(own, text.replace("quick", "slow")))
    fast.assert_equal(["the quick brown fox", "jumps"])
    assert fast.log[1:] == [
        "encoding with Hugging Face tokenizers: ids of tiktoken differ in 'the quick brown fox'"
    ]


def test_ids_that_differ_in_the_fixed_texts_end_the_use_of_tiktoken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ByteLevel, "encode", lambda _, text: np.array([len(text)]))
    fast = Fast(_saved(_train(PATTERNS["GPT-2"]), tmp_path))
    [line] = fast.log
    assert line.startswith("encoding with Hugging Face tokenizers: ids of tiktoken differ in")
    fast.assert_equal(FUZZ[:20])


def test_a_dataset_has_the_same_bytes_and_address_with_either_library(
    tmp_path: Path, tokenizer_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = [text for text in [*TRICKY, *FUZZ] if text.strip()]
    (tmp_path / "a.jsonl").write_bytes(lines(texts))
    made = []
    for folder in (tmp_path / "fast", tmp_path / "exact"):
        found = source(folder, {"path": f"{tmp_path}/a.jsonl", "format": "jsonl"})
        files = prepare(folder, tokenizer_dir, found)
        made.append((files, [path.name for path in folder.glob("out/objects/*")]))
        monkeypatch.setattr(byte_level, "PATTERNS", {})
        monkeypatch.setattr(byte_level, "_pattern", _refuse)
    assert made[0] == made[1]
    output = capsys.readouterr().out
    assert "encoding with tiktoken" in output
    assert "encoding with Hugging Face tokenizers, not with tiktoken: another pattern" in output
    assert len(decoded(found.output, tokenizer_dir)) == len(texts)


def _refuse(_: object) -> str:
    raise ByteLevelError("another pattern")
