"""Objects of a store with the S3 protocol, read like files of a volume.

Each read is a request for a range of the version that was listed (If-Match), so an object that changes is an
error, never a mixture of two. s3fs repeats requests that fail for a while, with back-off.
"""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import PurePosixPath
from typing import Any, BinaryIO, Literal, cast

from megatron_contract.exit_codes import ExitCode

from megatron_trainer.data import object_pattern
from megatron_trainer.data.preparation_error import PreparationError

SCHEME = "s3://"
ATTEMPTS = 6
"""Requests of one read, the first included: the last comes about half a minute after the first."""
BLOCK = 8 << 20
"""Bytes of one request, and of the buffer of an open object."""
_SETTINGS = "data.prepare.objectStorage"
_REFUSED = (
    "InvalidAccessKeyId",
    "SignatureDoesNotMatch",
    "ExpiredToken",
    "InvalidToken",
    "TokenRefreshRequired",
)
_FOR_A_WHILE = ("SlowDown", "RequestTimeout", "Throttling", "ThrottlingException", "TooManyRequests")
_CHANGED = ("PreconditionFailed", "412", "InvalidRange", "416")
_ELSEWHERE = (
    "PermanentRedirect",
    "301",
    "307",
    "AuthorizationHeaderMalformed",
    "IllegalLocationConstraintException",
)


class ObjectError(PreparationError):
    """An object, or its store, cannot be read. The text names it and the remedy."""


class NoObjectError(ObjectError):
    """Nothing matches a pattern."""


@dataclass(frozen=True)
class Store:
    """Where buckets are: URL of the store, None for AWS, and its region.

    Credentials are found as by all of AWS' libraries, first in the environment.
    """

    endpoint: str | None = None
    region: str | None = None

    @cached_property
    def filesystem(self) -> Any:
        """The file system of s3fs."""
        import s3fs

        return s3fs.S3FileSystem(
            endpoint_url=self.endpoint,
            client_kwargs={"region_name": self.region} if self.region else {},
            config_kwargs={"retries": {"mode": "standard", "max_attempts": ATTEMPTS}, "read_timeout": 60},
            # The second list shows whether objects changed since the first.
            use_listings_cache=False,
            skip_instance_cache=True,
        )

    def __str__(self) -> str:
        return self.endpoint or "AWS"


AWS = Store()


@dataclass(frozen=True)
class StoredObject:
    """An object as it was listed: `size` in bytes, `version` its ETag, or when it was changed."""

    store: Store = field(repr=False)
    path: str
    """Bucket and key."""
    size: int
    version: str

    def __str__(self) -> str:
        return f"{SCHEME}{self.path}"

    @property
    def suffix(self) -> str:
        """The end of the name, from its last dot on."""
        return PurePosixPath(self.path).suffix

    def open(self, mode: Literal["rb"] = "rb") -> BinaryIO:
        """Open the object to read it. Raises ObjectError, as all reads do."""
        with errors_named(str(self), self.store):
            # The buffer above it is its cache. With a size, s3fs would not compare versions.
            file = self.store.filesystem.open(self.path, mode, block_size=BLOCK, cache_type="none")
        if _version(file.details) != self.version:
            raise ObjectError(ExitCode.BAD_DATA, _changed(str(self)))
        size = max(1, min(BLOCK, self.size))
        return cast("BinaryIO", io.BufferedReader(_Ranges(self, file), size))


class _Ranges(io.RawIOBase):
    """An open object; each read is one request."""

    def __init__(self, read: StoredObject, file: Any) -> None:
        self._read, self._file, self._at = read, file, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._read.size}[whence]
        self._at = max(0, start + offset)
        return self._at

    def readinto(self, buffer: Any) -> int:
        length = min(len(buffer), self._read.size - self._at)
        if length <= 0:
            return 0
        with errors_named(str(self._read), self._read.store):
            self._file.seek(self._at)
            data = self._file.read(length)
        if len(data) != length:
            # The connection may end in the middle of an answer.
            text = f"{self._read}: {len(data)} of {length} bytes arrived from byte {self._at} on"
            raise ObjectError(ExitCode.WORKER_DIED, text)
        buffer[:length] = data
        self._at += length
        return length


def find(store: Store, url: str) -> list[StoredObject]:
    """Return the objects that a URL or pattern means, in the order of their names.

    Raises ObjectError, and ValueError for a pattern that is not well-formed.
    """
    bucket, _, pattern = url.removeprefix(SCHEME).partition("/")
    parts, fixed = object_pattern.split(pattern)
    found = []
    below = False
    with errors_named(url, store):
        for each in _listed(store, bucket, object_pattern.prefix(pattern)):
            key = str(each["Key"])
            if key == pattern and not key.endswith("/"):  # also a name with brackets
                return [_stored(store, bucket, each)]
            below |= key.startswith(f"{pattern.rstrip('/')}/")
            if not key.endswith("/") and object_pattern.matches(key, parts, fixed):
                found.append(_stored(store, bucket, each))
        if found:
            return sorted(found, key=lambda each: each.path.split("/"))
        if below:
            text = f"{url} is a folder; name its objects: {url.rstrip('/')}/*"
            raise ObjectError(ExitCode.BAD_DATA, text)
        raise NoObjectError(
            ExitCode.BAD_DATA, f"no object matches {url}; {_nearest(store, bucket, parts[:fixed])}"
        )


def _listed(store: Store, bucket: str, prefix: str) -> Iterator[dict[str, Any]]:
    more: dict[str, str] = {}
    while True:
        page = store.filesystem.call_s3("list_objects_v2", Bucket=bucket, Prefix=prefix, **more)
        yield from page.get("Contents", [])
        if not page.get("IsTruncated"):
            return
        more = {"ContinuationToken": page["NextContinuationToken"]}


def _stored(store: Store, bucket: str, listed: dict[str, Any]) -> StoredObject:
    return StoredObject(store, f"{bucket}/{listed['Key']}", int(listed["Size"]), _version(listed))


def _version(details: dict[str, Any]) -> str:
    return str(details.get("ETag") or details.get("LastModified"))


def _nearest(store: Store, bucket: str, folders: list[str]) -> str:
    """What is there instead of a pattern without objects."""
    folder = "".join(f"{each}/" for each in folders)
    page = store.filesystem.call_s3("list_objects_v2", Bucket=bucket, Prefix=folder, Delimiter="/", MaxKeys=6)
    names = [each["Prefix"] for each in page.get("CommonPrefixes", [])]
    names += [each["Key"] for each in page.get("Contents", []) if each["Key"] != folder]
    shown = sorted(name.removeprefix(folder) for name in names)
    there = ", ".join(shown[:5]) + (", ..." if len(shown) > 5 else "")
    return f"{SCHEME}{bucket}/{folder} has {there or 'nothing'}; correct the path (** crosses folders)"


@contextmanager
def errors_named(name: str, store: Store) -> Iterator[None]:
    """Turn the errors of s3fs and its libraries into one that names the object and the fix."""
    import botocore.exceptions

    try:
        yield
    except PreparationError:
        raise
    except (OSError, botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError) as error:
        code, text = _described(error, name, store)
        raise ObjectError(code, text) from error


def _described(error: Exception, name: str, store: Store) -> tuple[ExitCode, str]:
    """Exit code and text of an error: one that may end by itself is worth another try of the pod."""
    import botocore.exceptions

    answer = getattr(error, "response", None) or getattr(error.__cause__, "response", None) or {}
    code = str(answer.get("Error", {}).get("Code", ""))
    missing = (botocore.exceptions.NoCredentialsError, botocore.exceptions.PartialCredentialsError)
    if isinstance(error, missing):
        what = f"{name}: there are no credentials; set {_SETTINGS}.secretName"
    elif isinstance(error, botocore.exceptions.SSLError):
        what = f"{name}: the certificate of {store} is not accepted; correct {_SETTINGS}.endpointUrl"
    elif code == "NoSuchBucket":
        bucket = name.removeprefix(SCHEME).partition("/")[0]
        what = f"{name}: {store} has no bucket {bucket}; correct the path, or {_SETTINGS}.endpointUrl"
    elif code in _REFUSED:
        what = f"{name}: the credentials are refused ({code}); correct the Secret of {_SETTINGS}.secretName"
    elif code in ("AccessDenied", "403", "AllAccessDisabled"):
        fix = f"allow s3:ListBucket and s3:GetObject, or correct {_SETTINGS}.secretName"
        what = f"{name}: access is denied; {fix}"
    elif code in _CHANGED or type(error).__name__ == "FileExpired":
        what = _changed(name)
    elif code in _ELSEWHERE:
        region = answer.get("Error", {}).get("Region", "the bucket's")
        what = f"{name}: the bucket is in another region; set {_SETTINGS}.region: {region}"
    elif code in ("NoSuchKey", "404") or isinstance(error, FileNotFoundError):
        what = f"{name} was removed while it was prepared; copy it back, or correct the path"
    elif (
        code not in _FOR_A_WHILE
        and 400 <= int(answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)) < 500
    ):
        what = f"{name}: {store} refuses the request ({code}): {error}; correct the path, or {_SETTINGS}"
    else:
        reason = " ".join(str(error).split()) or type(error).__name__
        fix = f"check {_SETTINGS}.endpointUrl, and that pods may connect to it"
        return ExitCode.WORKER_DIED, f"{name}: {store} cannot be read: {reason}; {fix}"
    return ExitCode.BAD_DATA, what


def _changed(name: str) -> str:
    return f"{name} changed while it was prepared; wait until it is complete, then edit the recipe"
