"""Completes the data section of a recipe and finds what is missing."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, Final

from megatron_contract.environment import CHECKPOINT_DIR, DATA_DIR

from megatron_operator.api.diagnostics import Diagnostics
from megatron_operator.api.errors import FieldError, shown
from megatron_operator.api.platform import AcceleratorProfile
from megatron_operator.api.recipe import MegatronRecipeSpec
from megatron_operator.catalog import sources
from megatron_operator.catalog.validation_sets import has_validation_sets

DEFAULT_SPLIT: Final = "99,1,0"
DEFAULT_VOCABULARY: Final = 32_000
"""Entries of a tokenizer that `data.prepare` trains."""
DEFAULT_INCLUDE: Final = "**/*.txt"
"""Files of `data.prepare.source`."""
TIKTOKEN: Final = "TikTokenizer"
TOKENIZERS_OF_FILES: Final = (
    "SentencePieceTokenizer",
    "GPTSentencePieceTokenizer",
    "Llama2Tokenizer",
    TIKTOKEN,
)
"""Types that `data.sources` are prepared with besides HuggingFaceTokenizer; their models are files."""
_OF_A_MODEL: Final = ("HuggingFaceTokenizer", *TOKENIZERS_OF_FILES)
"""Types that read `tokenizerModel`."""
PREPARED_TOKENIZER: Final = {
    "tokenizerType": "HuggingFaceTokenizer",
    "tokenizerModel": f"{DATA_DIR}/tokenizer",
}

IMPORTED_MODEL: Final = "init.from.huggingFace"
"""Origin of the tokenizer of a model whose weights are imported."""


def without_stored_defaults(spec: MegatronRecipeSpec) -> MegatronRecipeSpec:
    """The recipe without two defaults in `data.prepare` that the CRD of 0.2.0 wrote into stored objects.

    They would be refused where they have no effect, and applying the recipe again does not remove them.
    """
    prepare = spec.data.prepare if spec.data else None
    if spec.data is None or prepare is None:
        return spec
    stored = {"include": DEFAULT_INCLUDE, "tokenizer_vocab_size": DEFAULT_VOCABULARY}
    unset = {name: None for name, value in stored.items() if getattr(prepare, name) == value}
    data = spec.data.model_copy(update={"prepare": prepare.model_copy(update=unset)})
    return spec.model_copy(update={"data": data})


def validates(split: str) -> bool:
    """Whether the second share of `99,1,0` is above 0; a share that is left out is 0."""
    shares = split.split(",")
    return len(shares) > 1 and float(shares[1]) > 0


def split_errors(split: str) -> Iterator[FieldError]:
    """The error of a split whose first share, that of training, is 0."""
    if float(split.split(",")[0]) == 0:
        fix = "give a share to training, for example 98,2,0"
        yield FieldError("spec.data.split", f"{split} leaves nothing to train on", fix)


def set_split(data: dict[str, Any], found: Diagnostics) -> None:
    """Set the split that a recipe without datasets for validation alone has by default.

    With them there is none; one that the recipe itself sets is left for `validation_set_errors`.
    """
    if has_validation_sets(data):
        if not found.is_set_by_user("data.split"):
            data.pop("split", None)
            found.origins.pop("data.split", None)
    elif "split" not in data:
        data["split"] = DEFAULT_SPLIT
        found.origins["data.split"] = "default"


def take_tokenizer(data: dict[str, Any], spec: MegatronRecipeSpec, found: Diagnostics) -> None:
    """Set the tokenizer of the model whose weights are imported, unless the recipe names one.

    Its ids are those that the weights were trained with. Preparing pods mount the data volume alone.
    """
    source = spec.init.source.hugging_face if spec.init and spec.init.source else None
    asked = spec.data is not None and (spec.data.tokenizer is not None or spec.data.mock_data)
    path = source.path if source else None
    if path is None or asked or not path.startswith(f"{DATA_DIR}/"):
        return
    data["tokenizer"] = PREPARED_TOKENIZER | {"tokenizerModel": path}
    found.origin("data.tokenizer", IMPORTED_MODEL)


def complete_tokenizer(data: Mapping[str, Any]) -> None:
    """Set the type of a tokenizer of which the recipe names the model alone, instead of the catalog's."""
    if "tokenizerModel" in (data.get("tokenizer") or {}):
        data["tokenizer"].setdefault("tokenizerType", PREPARED_TOKENIZER["tokenizerType"])


def complete_data(data: dict[str, Any], model: dict[str, Any], found: Diagnostics) -> None:
    """Fill in what `prepare` or `mockData` determine: blend, tokenizer, vocabulary.

    Settings of the recipe itself are kept. Errors, notes and origins go to `found`.
    """
    origins = found.origins
    prepare = data.get("prepare")
    found.extend(_unchecked_errors(data))
    found.extend(sources.storage_errors(data))
    if data.get("sources"):
        _complete_sources(data, found)
    elif prepare is not None:
        if prepare.get("workers") is not None:
            message, fix = "has no effect with data.prepare.source", "use data.sources, or leave it out"
            found.error("spec.data.prepare.workers", message, fix)
        origin = origins["data.prepare"]
        if _is_overridden("data.blend", origin, origins):
            data["blend"] = [{"path": f"{prepare.get('name', 'corpus')}_text_document", "weight": 1.0}]
            origins["data.blend"] = "data.prepare"
        if origins.get("data.tokenizer") not in (origin, IMPORTED_MODEL):
            data["tokenizer"] = dict(PREPARED_TOKENIZER)
            data["prepare"] = prepare = {"tokenizerVocabSize": DEFAULT_VOCABULARY} | prepare
            origins["data.tokenizer"] = "data.prepare"
            if _is_overridden("model.vocabSize", origin, origins):
                before, after = model.get("vocabSize"), prepare["tokenizerVocabSize"]
                model["vocabSize"] = after
                origins["model.vocabSize"] = "data.prepare"
                if before not in (None, after):
                    found.note(
                        f"vocabSize {before:,} becomes {after:,}: from the tokenizer that data.prepare trains"
                    )
        else:
            fix = ", or leave data.tokenizer out to have one trained"
            _check_tokenizer_to_prepare(data["tokenizer"], prepare, found, fix)
    if data.get("mockData") and _is_overridden("data.tokenizer", origins["data.mockData"], origins):
        data["tokenizer"] = {"tokenizerType": "NullTokenizer"}
        origins["data.tokenizer"] = "data.mockData"
    if data.get("tokenizer", {}).get("tokenizerType") == "GPT2BPETokenizer":
        found.note(
            "GPT2BPETokenizer downloads gpt2 from the model hub even with vocabFile and mergeFile; without"
            " internet access in the pods use HuggingFaceTokenizer with a directory on the data volume"
        )
    set_split(data, found)
    _check(data, found)


def tokenizer_folder_errors(
    data: Mapping[str, Any], profile: AcceleratorProfile, origins: Mapping[str, str]
) -> Iterator[FieldError]:
    """The error of a tokenizer on a volume that the run's pods mount and those that prepare sources do not.

    A folder of the image is in both.
    """
    tokenizer = data.get("tokenizer") or {}
    folder = tokenizer.get("tokenizerModel")
    if not data.get("sources") or folder is None or tokenizer.get("tokenizerType") in TOKENIZERS_OF_FILES:
        return
    elsewhere = (CHECKPOINT_DIR, *(mount.mount_path for mount in profile.pod_template.volume_mounts))
    inside = {PurePosixPath(folder), *PurePosixPath(folder).parents}
    if inside.isdisjoint(map(PurePosixPath, elsewhere)):
        return
    model = "data.tokenizer.tokenizerModel"
    origin = origins.get("data.tokenizer", "")
    message = f"{shown(folder)} is not on the data volume, the only one of the pods that prepare data"
    fix = f"copy the tokenizer there, and name its folder below {DATA_DIR} in {model}"
    yield FieldError(f"spec.{origin if origin.startswith('init.') else model}", message, fix)


def _unchecked_errors(data: Mapping[str, Any]) -> Iterator[FieldError]:
    """Errors of settings of the check of a run's data, where none or another one is made."""
    fix = "leave it out, or set data.blend"
    if data.get("mockData"):
        why = "with data.mockData"
    elif data.get("sources"):
        why = "with data.sources, which are checked when they are prepared"
    elif data.get("prepare") is not None:
        why, fix = "with data.prepare.source", "leave it out, or set data.sources"
    elif data.get("blend"):
        return
    else:
        why = "without data.sources or data.blend"
    if data.get("check") is not None:
        yield FieldError("spec.data.check", f"has no effect {why}", "leave it out")
    if data.get("maxEpochs") is not None and (data.get("mockData") or not data.get("sources")):
        yield FieldError("spec.data.maxEpochs", f"has no effect {why}", fix)


def _complete_sources(data: dict[str, Any], found: Diagnostics) -> None:
    """Set the blend that the sources become, and check what the preparation would not take."""
    prepare, tokenizer = data.get("prepare") or {}, data.setdefault("tokenizer", {})
    if tokenizer.get("tokenizerType") in TOKENIZERS_OF_FILES:
        _check_tokenizer_file(tokenizer, data["sources"], found)
        _check_no_vocabulary_to_train(prepare, found)
    else:
        _check_tokenizer_to_prepare(tokenizer, prepare, found, "")
    if prepare.get("include") is not None:
        message, fix = "has no effect with data.sources", "put the pattern into data.sources[].path"
        found.error("spec.data.prepare.include", message, fix)
    for number, source in enumerate(data["sources"]):
        found.extend(sources.source_errors(source, f"spec.data.sources[{number}]"))
    data["blend"] = sources.blend(data["sources"], prepare, tokenizer)
    found.extend(sources.repeated_sources(data["blend"], "spec.data.sources"))
    found.extend(workers_errors(data))
    found.origins["data.blend"] = "data.sources"


def workers_errors(data: Mapping[str, Any]) -> list[FieldError]:
    """The error of several pods that prepare on a volume of one node."""
    volume, workers = data.get("volume") or {}, (data.get("prepare") or {}).get("workers") or 1
    if workers == 1 or volume.get("accessMode") != "ReadWriteOnce":
        return []
    message = f"ReadWriteOnce is for the pods of one node, and data.prepare.workers is {workers}"
    fix = "set ReadWriteMany, or workers: 1, which uses all processors of its node"
    return [FieldError("spec.data.volume.accessMode", message, fix)]


def _is_overridden(path: str, origin: str, origins: Mapping[str, str]) -> bool:
    """Whether the layer of `origin` does not set `path` itself."""
    return origins.get(path) != origin


def _check_tokenizer_to_prepare(
    tokenizer: Mapping[str, Any], prepare: Mapping[str, Any], found: Diagnostics, other: str
) -> None:
    """Add an error for a tokenizer that the preparation cannot use, as it would train with another one."""
    field = "spec.data.tokenizer."
    kind, model = tokenizer.get("tokenizerType"), tokenizer.get("tokenizerModel")
    if kind not in (None, PREPARED_TOKENIZER["tokenizerType"]):
        fix = f"set HuggingFaceTokenizer with a directory that has tokenizer.json{other}"
        fix += ", or use data.sources" if kind in TOKENIZERS_OF_FILES else ""
        found.error(f"{field}tokenizerType", f"{kind}: data.prepare does not tokenize with it", fix)
    elif model is None or not model.startswith("/"):
        message = "is not set" if model is None else f"{shown(model)} is not a path in the pod"
        fix = f"copy the tokenizer to the data volume and name its directory below {DATA_DIR}{other}"
        found.error(f"{field}tokenizerModel", f"{message}, and data.prepare asks no model hub", fix)
    _check_no_vocabulary_to_train(prepare, found)


def _check_no_vocabulary_to_train(prepare: Mapping[str, Any], found: Diagnostics) -> None:
    if prepare.get("tokenizerVocabSize") is not None:
        message = "has no effect with data.tokenizer: that tokenizer is used"
        found.error("spec.data.prepare.tokenizerVocabSize", message, "leave one of the two out")


def _check_tokenizer_file(
    tokenizer: Mapping[str, Any], listed: Sequence[Mapping[str, Any]], found: Diagnostics
) -> None:
    """Add the errors of a tokenizer of SentencePiece or tiktoken that sources are prepared with."""
    field = "spec.data.tokenizer.tokenizerModel"
    kind, model = tokenizer["tokenizerType"], tokenizer.get("tokenizerModel")
    suffix = ".json" if kind == TIKTOKEN else ".model"
    if model is None or not model.startswith(f"{DATA_DIR}/"):
        message = "is not set" if model is None else f"{shown(model)} is not on the data volume"
        fix = f"copy the file there and name it, for example {DATA_DIR}/tokenizer{suffix}"
        found.error(field, f"{message}, and {kind} reads a file", fix)
    elif kind == TIKTOKEN and not model.endswith(suffix):
        fix = "write it as a .json file: a list of rank, token_bytes (base64) and token_str"
        found.error(field, f"{shown(model)} is not the vocabulary that Megatron's {kind} reads", fix)
    for number, source in enumerate(listed):
        if source["format"] == "chat":
            message = f"chat needs a chat template, which a file of {kind} does not have"
            fix = "use HuggingFaceTokenizer with a directory that has one, or another format"
            found.error(f"spec.data.sources[{number}].format", message, fix)


def _check(data: Mapping[str, Any], found: Diagnostics) -> None:
    """Add an error for each setting that is missing, or that Megatron would refuse once it has the data."""
    if not data.get("mockData"):
        _check_datasets(data, found)
    # Random tokens are those of a tokenizer too: NullTokenizer, unless the recipe names one.
    if not data.get("tokenizer", {}).get("tokenizerType"):
        fix = "set it, for example HuggingFaceTokenizer with tokenizerModel: /data/tokenizer"
        found.error("spec.data.tokenizer.tokenizerType", "is not set", fix)
    elif data["tokenizer"]["tokenizerType"] in _OF_A_MODEL and not data["tokenizer"].get("tokenizerModel"):
        message = f"is not set, and {data['tokenizer']['tokenizerType']} reads it"
        fix = f"name its directory or file on the data volume, for example {DATA_DIR}/tokenizer"
        found.error("spec.data.tokenizer.tokenizerModel", message, fix)


def _check_datasets(data: Mapping[str, Any], found: Diagnostics) -> None:
    found.extend(split_errors(data.get("split", DEFAULT_SPLIT)))
    for number, entry in enumerate(data.get("blend") or ()):
        found.extend(_prefix_errors(entry["path"], f"spec.data.blend[{number}].path"))
    if not data.get("blend"):
        fix = "set data.blend with data.volume, data.sources to tokenize documents, or data.mockData: true"
        found.error("spec.data", "no training data is configured", fix)
    elif not data.get("volume"):
        fix = "set data.volume.claimName, or data.volume.size to create a claim"
        found.error("spec.data.volume", "data.blend requires a volume with its datasets", fix)


def _prefix_errors(path: str, field: str) -> Iterator[FieldError]:
    """Errors of a dataset that is not named as Megatron does: by the path of its files without their ends."""
    if path.endswith((".bin", ".idx")):
        fix = f"set {path[:-4]}: Megatron reads {path[:-4]}.bin and {path[:-4]}.idx"
        yield FieldError(field, f"{shown(path)} is one of a dataset's two files", fix)
    elif "://" in path:
        fix = "set data.sources, which are read from object storage, or copy the dataset to the volume"
        yield FieldError(field, f"{shown(path)} is not a path on the data volume", fix)
