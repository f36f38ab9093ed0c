"""Downloads a model from a Hugging Face hub to a folder of a volume, before it is converted.

Taken are the files that a conversion and a tokenizer read: weights in safetensors and small files of the
model's own folder, no code. Files that a killed process had completed are not downloaded again.
"""

import fcntl
import glob
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from megatron_contract.progress import ConversionProgress

from megatron_trainer.errors import TrainerError
from megatron_trainer.weights.conversion_error import ConversionError, DownloadError
from megatron_trainer.weights.huggingface_folder import DOWNLOAD_FILE, INDEX, SINGLE

if TYPE_CHECKING:
    from huggingface_hub import HfApi

TOKEN: Final = "HF_TOKEN"
DEFAULT_REVISION: Final = "main"
DEFAULT_ENDPOINT: Final = "https://huggingface.co"
_SMALL: Final = (".json", ".txt", ".model", ".tiktoken", ".jinja")
"""Suffixes of configuration and tokenizer."""
_LICENCES: Final = ("LICENSE", "NOTICE", "USE_POLICY")
_WEIGHTS: Final = ".safetensors"
_COMMIT: Final = ".cache/commit"
"""File in a folder that is not complete, with the commit of the others; the library has its own beside it."""
_FIELD: Final = "init.from.huggingFace"
_FOR_A_WHILE: Final = (408, 425, 429)
"""Status codes of a client's error that another try may not meet."""


@dataclass(frozen=True)
class HubModel:
    """A model on a hub; `revision` is a branch, a tag or a commit."""

    name: str
    revision: str = DEFAULT_REVISION
    endpoint: str = DEFAULT_ENDPOINT
    token: str | None = None

    @classmethod
    def of_environment(cls, name: str, revision: str | None) -> "HubModel":
        """The model with the endpoint and the token that the process's variables have."""
        endpoint = os.environ.get("HF_ENDPOINT") or DEFAULT_ENDPOINT
        token = os.environ.get(TOKEN, "").strip() or None
        return cls(name, revision or DEFAULT_REVISION, endpoint.rstrip("/"), token)


def commit(folder: Path) -> str | None:
    """The commit that a folder was downloaded at; None for one that was not downloaded here."""
    try:
        found = json.loads((folder / DOWNLOAD_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return str(found["commit"]) if isinstance(found, dict) and "commit" in found else None


def download(
    model: HubModel, folder: Path, watch: Callable[[Callable[[], ConversionProgress]], None]
) -> None:
    """Have the model in `folder`, which appears under its name only when it is complete.

    One that is there is taken as it is, without a question to the hub. `watch` gets what measures the
    progress. Raises ConversionError for a model that the hub does not give, DownloadError otherwise.
    """
    part = folder.with_name(f".{folder.name}.partial")
    if _is_complete(folder):
        return
    # The library reads them at its import. Xet would need other hosts than the endpoint.
    os.environ |= {"HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    try:
        part.parent.mkdir(parents=True, exist_ok=True)
        with _locked(folder.with_name(f".{folder.name}.lock")):
            if _is_complete(folder):
                return
            part.mkdir(exist_ok=True)
            with _errors_named(model):
                _fill(part, model, watch)
            part.rename(folder)
    except PermissionError as error:
        text = f"--from {folder}: cannot write {folder.parent}; make it writable for user {os.getuid()}"
        raise ConversionError(text) from error


def _is_complete(folder: Path) -> bool:
    """Whether the model is there. Raises ConversionError for a folder that is something else."""
    if not folder.exists():
        return False
    if commit(folder) is None:
        raise ConversionError(
            f"--from {folder} exists and was not downloaded from a hub; remove it, or set {_FIELD}.path to it"
        )
    return True


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    """One process at a time, over all pods that mount the volume; a killed one releases the lock."""
    with file.open("w") as opened:
        fcntl.flock(opened, fcntl.LOCK_EX)
        yield


def _fill(part: Path, model: HubModel, watch: Callable[[Callable[[], ConversionProgress]], None]) -> None:
    from huggingface_hub import HfApi, snapshot_download

    api = HfApi(endpoint=model.endpoint, token=model.token or False)
    _remove_torn_files(part)
    info = api.model_info(model.name, revision=model.revision, files_metadata=True)
    found = {file.rfilename: file.size or 0 for file in info.siblings or ()}
    revision = str(info.sha)
    _remove_others(part, revision)
    names = _chosen(found, lambda: _index(api, model, revision, part))
    sizes = {name: found[name] for name in names}
    _require_room(part, sizes)
    total = sum(sizes.values())
    watch(lambda: ConversionProgress("download", 0, 0, min(_bytes_below(part), total), total))
    snapshot_download(
        model.name,
        revision=revision,
        local_dir=part,
        allow_patterns=[glob.escape(name) for name in names],
        endpoint=model.endpoint,
        token=model.token or False,
    )
    torn = [name for name in names if not _has_size(part / name, sizes[name])]
    if torn:
        raise DownloadError(f"{torn[0]} of {model.name} is not complete after the download; try again")
    source = {"name": model.name, "revision": model.revision, "commit": revision, "endpoint": model.endpoint}
    (part / DOWNLOAD_FILE).write_text(json.dumps(source, indent=2) + "\n", encoding="utf-8")
    shutil.rmtree(part / ".cache", ignore_errors=True)


def _chosen(sizes: Mapping[str, int], read_index: Callable[[], Mapping[str, Any]]) -> list[str]:
    """The files to download. Raises ConversionError for a model without weights in safetensors."""
    names = [name for name in sizes if "/" not in name]
    small = [name for name in names if name.endswith(_SMALL) or name.startswith(_LICENCES)]
    weights = [name for name in names if name.endswith(_WEIGHTS)]
    if INDEX in names:
        # Some models have the weights a second time, in another layout.
        weights = sorted(set(read_index().values()) & set(names))
    elif SINGLE in weights:
        weights = [SINGLE]
    if not weights:
        others = [name for name in names if name.endswith((".bin", ".pt", ".pth", ".gguf"))]
        has = f"; it has {', '.join(others[:3])}" if others else ""
        raise ConversionError(f"the model has no *{_WEIGHTS} file on the hub{has}: name one that has")
    return sorted({*small, *weights})


def _index(api: "HfApi", model: HubModel, revision: str, part: Path) -> Mapping[str, Any]:
    """File by tensor, as the model's index has it."""
    file = api.hf_hub_download(model.name, INDEX, revision=revision, local_dir=part)
    try:
        found = json.loads(Path(file).read_text(encoding="utf-8"))["weight_map"]
    except (ValueError, KeyError, TypeError) as error:
        raise ConversionError(f"{INDEX} of {model.name} is not an index of safetensors: {error!r}") from error
    return found if isinstance(found, dict) else {}


def _remove_torn_files(part: Path) -> None:
    """Remove what a killed process has not completed: the library begins such files again."""
    for file in part.glob(".cache/huggingface/download/*.incomplete"):
        file.unlink(missing_ok=True)


def _remove_others(part: Path, revision: str) -> None:
    """Remove files of an earlier commit, which a branch had when the download began.

    The library takes what is there where the hub does not answer for a file.
    """
    kept = part / _COMMIT
    if not kept.is_file() or kept.read_bytes() != revision.encode():
        shutil.rmtree(part)
        kept.parent.mkdir(parents=True)
        kept.write_bytes(revision.encode())


def _require_room(part: Path, sizes: Mapping[str, int]) -> None:
    """Raise ConversionError for what cannot be downloaded: more than is free, or too much for one file."""
    from huggingface_hub.constants import MAX_HTTP_DOWNLOAD_SIZE

    for name, size in sizes.items():
        if size > MAX_HTTP_DOWNLOAD_SIZE:
            raise ConversionError(
                f"{name} has {size >> 30:,} GiB, which the hub serves by Xet alone; download the model to a "
                f"folder and set {_FIELD}.path to it"
            )
    missing = sum(size for name, size in sizes.items() if not _has_size(part / name, size))
    free = shutil.disk_usage(part).free
    if missing > free:
        raise ConversionError(
            f"{part.parent}: {missing >> 20:,} MiB are to be downloaded and {free >> 20:,} MiB are free; "
            "enlarge the volume"
        )


def _has_size(file: Path, size: int) -> bool:
    return file.is_file() and file.stat().st_size == size


def _bytes_below(part: Path) -> int:
    total = 0
    for place, _, names in part.walk():
        for name in names:
            try:
                total += (place / name).stat().st_size
            except FileNotFoundError:
                continue  # it has just been renamed
    return total


@contextmanager
def _errors_named(model: HubModel) -> Iterator[None]:
    """Turn the errors of the library into one that names the model, the field and the fix."""
    from huggingface_hub import errors

    # The base of the library's own errors: that of its HTTP client, which differs between releases.
    of_client = cast("type[Exception]", errors.HfHubHTTPError.__bases__[0])
    try:
        yield
    except errors.HfHubHTTPError as error:
        raise _refusal(error, model) from error
    except ValueError as error:
        what = f"{model.name}: {model.endpoint} answers otherwise than a hub: {_reason(error)}"
        raise ConversionError(f"{what}; correct {_FIELD}.name, or platform.hub.endpoint") from error
    except (of_client, OSError) as error:
        if isinstance(error, OSError) and error.filename is not None:
            raise  # of the volume
        what = f"{model.name}: {model.endpoint} cannot be read: {_reason(error)}"
        fix = "check platform.hub.endpoint, and that pods of import Jobs may connect to it"
        raise DownloadError(f"{what}; {fix}") from error


def _refusal(error: Any, model: HubModel) -> TrainerError:
    """What an answer of the hub means: final, unless a later one may differ."""
    from huggingface_hub import errors

    status = error.response.status_code
    named = f"{model.name}: {model.endpoint} "
    secret = f"the Secret of {_FIELD}.secretKeyRef"
    if isinstance(error, errors.GatedRepoError):
        what = f"gives this model only to accounts that accepted its terms ({status})"
        fix = f"accept them at {model.endpoint}/{model.name}, and correct {secret}"
        fix = fix if model.token else f"accept them there, and set {_FIELD}.secretKeyRef to a token"
        return ConversionError(f"{named}{what}; {fix}")
    if isinstance(error, errors.RevisionNotFoundError):
        return ConversionError(
            f"{named}has no revision {model.revision} of it; correct {_FIELD}.revision, or leave it out"
        )
    if isinstance(error, errors.RepositoryNotFoundError):
        hidden = "the token may not read it" if model.token else "it is private and no token is set"
        return ConversionError(
            f"{named}has no such model, or {hidden} ({status}); correct {_FIELD}.name, or {secret}"
        )
    if status == 401:
        fix = f"correct {secret}" if model.token else f"set {_FIELD}.secretKeyRef"
        return ConversionError(f"{named}refuses the token (401); {fix}")
    if status == 403:
        return ConversionError(f"{named}forbids the download (403); correct {secret}")
    if status < 500 and status not in _FOR_A_WHILE:
        return ConversionError(
            f"{named}refuses the request ({status}); correct {_FIELD}.name, or platform.hub.endpoint"
        )
    return DownloadError(f"{named}answers {status}; try again later, by any edit of the spec")


def _reason(error: BaseException) -> str:
    return " ".join(str(error.__cause__ or error).split())[:200] or type(error).__name__
