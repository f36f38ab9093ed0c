"""Whether a checkpoint that cannot be loaded is damaged, or only what loads it fails."""

import errno
import json
import pickle
import struct
import traceback
import zipfile
import zlib
from collections.abc import Sequence

_DAMAGE = (
    pickle.UnpicklingError,
    EOFError,
    zipfile.BadZipFile,
    zlib.error,
    json.JSONDecodeError,
    UnicodeDecodeError,
    struct.error,
)
# Of RuntimeErrors that torch's reader of archives raises (caffe2/serialize/inline_container.cc).
_DAMAGE_TEXTS = ("PytorchStreamReader failed", "storage has wrong byte size", "corrupt", "unexpected EOF")
# A class that cannot be found or is not allowed is a matter of versions.
_VERSION_TEXTS = ("Unsupported global", "Unsupported class")
_READERS = ("torch/serialization.py", "torch/_weights_only_unpickler.py", "/pickle.py", "/zipfile/", "json/")
_CALLS = ("pickle.load(", "torch.load(", "json.load(")


def caused_by_content(error: BaseException, frames: Sequence[traceback.FrameSummary]) -> bool:
    """Whether the bytes of a checkpoint caused an error: it was raised while they were decoded.

    `frames` are those of the error, innermost last. Damaged bytes may raise nearly anything there. All
    errors outside, such as those of flags, of memory or of a copy into a tensor, would meet the next
    checkpoint too.
    """
    if isinstance(error, ImportError | AttributeError | MemoryError):
        return False
    if isinstance(error, OSError) and error.errno != errno.EINVAL:
        # EINVAL: a seek to an offset that only damaged bytes ask for.
        return False
    text = str(error)
    if any(sign in text for sign in _VERSION_TEXTS):
        return False
    if isinstance(error, _DAMAGE) or any(sign in text for sign in _DAMAGE_TEXTS):
        return True
    innermost = frames[-1] if frames else None
    if innermost is None:
        return False
    called = innermost.line or ""
    return any(part in innermost.filename for part in _READERS) or any(call in called for call in _CALLS)
