"""Data and tokenizer of a resolved recipe."""

from collections.abc import Callable
from typing import Any

import pytest
from megatron_operator.api.platform import PlatformConfig
from megatron_operator.catalog import Catalog, ResolvedRecipe

Resolve = Callable[..., ResolvedRecipe]
Refusal = Callable[..., dict[str, str]]

IMPORTED = {"from": {"huggingFace": {"path": "/data/model"}}}


def test_prepared_text_sets_dataset_tokenizer_and_vocabulary(resolve: Resolve) -> None:
    prepare = {"source": "/text", "name": "books", "tokenizerVocabSize": 4096}
    resolved = resolve(recipe="small-1", data={"volume": {"size": "1Gi"}, "prepare": prepare})
    assert resolved.data.blend is not None
    assert [part.path for part in resolved.data.blend] == ["books_text_document"]
    assert resolved.data.tokenizer is not None
    assert resolved.data.tokenizer.tokenizer_model == "/data/tokenizer"
    assert resolved.model.vocab_size == 4096
    assert any("vocabSize 1,000 becomes 4,096" in note for note in resolved.notes)


def test_a_vocabulary_of_the_recipe_is_kept_with_prepared_text(resolve: Resolve) -> None:
    data = {"volume": {"size": "1Gi"}, "prepare": {"source": "/text"}}
    assert resolve(recipe="small-1", data=data, model={"vocabSize": 5000}).model.vocab_size == 5000


def test_a_vocabulary_without_size_is_trained_with_32000_entries(resolve: Resolve) -> None:
    resolved = resolve(recipe="small-1", data={"volume": {"size": "1Gi"}, "prepare": {"source": "/text"}})
    assert resolved.data.prepare is not None
    assert (resolved.data.prepare.tokenizer_vocab_size, resolved.model.vocab_size) == (32_000, 32_000)


def test_a_tokenizer_that_is_named_is_used_to_prepare(resolve: Resolve) -> None:
    named = {"tokenizerType": "HuggingFaceTokenizer", "tokenizerModel": "/data/llama"}
    data = {"volume": {"size": "1Gi"}, "prepare": {"source": "/text"}, "tokenizer": named}
    resolved = resolve(recipe="small-1", data=data)
    assert resolved.data.prepare is not None
    assert resolved.data.prepare.tokenizer_vocab_size is None, "none is trained"
    assert resolved.model.vocab_size == 1000


@pytest.mark.parametrize(
    "read", [{"prepare": {"source": "/text"}}, {"sources": [{"path": "/data/text/*.txt"}], "prepare": {}}]
)
def test_defaults_that_0_2_0_wrote_into_a_recipe_are_as_if_not_set(
    read: dict[str, Any], resolve: Resolve, refusal: Refusal
) -> None:
    named = {"tokenizerType": "HuggingFaceTokenizer", "tokenizerModel": "/data/llama"}
    data = {"volume": {"claimName": "c"}, "tokenizer": named, **read}
    stored = {"include": "**/*.txt", "tokenizerVocabSize": 32_000, "name": "corpus", "appendEod": True}
    resolved = resolve(recipe="small-1", data=data | {"prepare": read["prepare"] | stored})
    assert resolved == resolve(recipe="small-1", data=data)
    own = {"tokenizerVocabSize": 50_000} | ({"include": "*.txt"} if "sources" in read else {})
    refused = refusal(recipe="small-1", data=data | {"prepare": read["prepare"] | own})
    assert refused.keys() == {f"spec.data.prepare.{leaf}" for leaf in own}


@pytest.mark.parametrize(
    ("data", "tokenizer"),
    [
        ({"blend": [{"path": "web"}]}, "/data/model"),
        ({"prepare": {"source": "/text"}}, "/data/model"),
        (
            {
                "blend": [{"path": "web"}],
                "tokenizer": {"tokenizerType": "HuggingFaceTokenizer", "tokenizerModel": "/data/own"},
            },
            "/data/own",
        ),
    ],
)
def test_weights_that_are_imported_bring_their_tokenizer_unless_the_recipe_names_one(
    data: dict[str, Any], tokenizer: str | None, resolve: Resolve
) -> None:
    resolved = resolve(recipe="small-1", init=IMPORTED, data={"volume": {"claimName": "c"}, **data})
    assert resolved.data.tokenizer is not None
    assert resolved.data.tokenizer.tokenizer_model == tokenizer
    assert resolved.model.vocab_size == 1000, "none is trained"


@pytest.mark.parametrize("place", ["/checkpoints/tokenizer", "/models/tokenizer"])
def test_a_tokenizer_on_a_volume_of_the_run_alone_is_refused_for_sources(
    place: str, resolve: Resolve, refusal: Refusal
) -> None:
    """Pods that prepare data mount the data volume, and none of the platform's."""
    shared = {
        "volumes": [{"name": "models", "hostPath": {"path": "/models"}}],
        "volumeMounts": [{"name": "models", "mountPath": "/models"}],
    }
    profiles = {"h100": {"hardware": "h100-sxm", "podTemplate": shared}}
    platform = PlatformConfig.model_validate({"accelerators": profiles, "image": "trainer"})
    tokenizer = {"tokenizerType": "HuggingFaceTokenizer", "tokenizerModel": place}
    sources = {"sources": [{"path": "/data/raw/a.jsonl", "format": "jsonl"}]}
    data = {"volume": {"claimName": "c"}, "tokenizer": tokenizer}
    refused = refusal(recipe="small-1", data=data | sources, platform=platform)
    assert f": '{place}' is not on the data volume" in refused["spec.data.tokenizer.tokenizerModel"]
    resolve(recipe="small-1", data=data | {"blend": [{"path": "web"}]}, platform=platform)
    of_image = {"tokenizer": tokenizer | {"tokenizerModel": "/opt/tokenizer"}}
    resolve(recipe="small-1", data=data | sources | of_image, platform=platform)


@pytest.mark.parametrize("kind", ["HuggingFaceTokenizer", "SentencePieceTokenizer", "TikTokenizer"])
def test_a_tokenizer_without_its_model_is_refused(kind: str, refusal: Refusal) -> None:
    data = {"volume": {"claimName": "c"}, "blend": [{"path": "a"}], "tokenizer": {"tokenizerType": kind}}
    refused = refusal(recipe="small-1", data=data)["spec.data.tokenizer.tokenizerModel"]
    assert f": is not set, and {kind} reads it; name its directory" in refused


@pytest.mark.parametrize(
    "data", [{"mockData": True}, {"volume": {"claimName": "c"}, "blend": [{"path": "a"}]}]
)
def test_a_model_of_a_tokenizer_alone_replaces_the_catalogs_tokenizer(
    data: dict[str, Any], resolve: Resolve
) -> None:
    tokenizer = resolve(
        recipe="small-1", data=data | {"tokenizer": {"tokenizerModel": "/data/own"}}
    ).data.tokenizer
    assert tokenizer is not None
    assert tokenizer.wire() == {"tokenizerType": "HuggingFaceTokenizer", "tokenizerModel": "/data/own"}


def test_a_tokenizer_without_its_type_is_refused_without_a_recipe(small: Catalog, refusal: Refusal) -> None:
    entry = small.get("small-1")
    own = {"model": entry.model.wire(), "training": entry.training.wire()}
    refused = refusal(**own, data={"mockData": True, "tokenizer": {"tokenizerModel": "/data/own"}})
    assert list(refused) == ["spec.data.tokenizer.tokenizerType"]


def test_mock_data_needs_no_tokenizer(resolve: Resolve) -> None:
    tokenizer = resolve(recipe="small-1").data.tokenizer
    assert tokenizer is not None
    assert tokenizer.wire() == {"tokenizerType": "NullTokenizer"}


@pytest.mark.parametrize(
    ("tokenizer", "leaf"),
    [
        ({"vocabFile": "/data/vocab.json"}, "tokenizerType"),
        ({"tokenizerType": "HuggingFaceTokenizer"}, "tokenizerModel"),
    ],
)
def test_an_incomplete_tokenizer_is_refused_with_mock_data_too(
    tokenizer: dict[str, Any], leaf: str, refusal: Refusal
) -> None:
    refused = refusal(recipe="small-1", data={"mockData": True, "tokenizer": tokenizer})
    assert list(refused) == [f"spec.data.tokenizer.{leaf}"]


def test_a_tokenizer_that_needs_the_internet_has_a_note(resolve: Resolve) -> None:
    data = {"volume": {"claimName": "c"}, "blend": [{"path": "a"}]}
    notes = resolve(recipe="small-1", data=data).notes
    assert any("GPT2BPETokenizer downloads gpt2 from the model hub" in note for note in notes)


@pytest.mark.parametrize(
    ("data", "field"),
    [
        ({}, "spec.data"),
        ({"mockData": False}, "spec.data"),
        ({"blend": [{"path": "a"}]}, "spec.data.volume"),
        ({"prepare": {"source": "/text"}}, "spec.data.volume"),
    ],
)
def test_missing_data_is_rejected_by_field(refusal: Refusal, data: dict[str, Any], field: str) -> None:
    assert list(refusal(recipe="small-1", data=data)) == [field]
