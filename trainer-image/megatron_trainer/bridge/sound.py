"""Sound as the processors of models take it: one channel, at their sampling rate."""

import io
import math
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

FORMATS: Final = frozenset({"wav", "flac", "mp3"})
"""Formats by their names in FFmpeg."""
_SOUND_ALONE: Final = {"format_whitelist": ",".join(sorted(FORMATS)), "protocol_whitelist": ""}
"""FFmpeg's options by which it reads these formats, and nothing that a file names, such as a URL."""
SHORTEST_SECONDS: Final = 0.1
"""Bridge takes a sound of a single token, of 40 ms, for one whose tokens are not counted yet."""


class Sound(NamedTuple):
    """Samples [samples] in float32 between -1 and 1, `rate` of them a second."""

    samples: NDArray[np.float32]
    rate: int


def decode(data: bytes) -> Sound:
    """Return the sound of a file, the mean of its channels. Raises OSError or ValueError for what is none."""
    import av

    try:
        opened = av.open(io.BytesIO(data), options=dict(_SOUND_ALONE))
    except (av.error.ArgumentError, av.error.InvalidDataError) as error:
        raise ValueError(f"the file is none of {', '.join(sorted(FORMATS))}") from error
    with opened as container:
        kind = container.format.name
        if not container.streams.audio:
            raise ValueError("the file has no sound")
        stream: Any = container.streams.audio[0]
        if kind == "flac":
            # Checksums of its frames are compared only then.
            stream.codec_context.options = {"err_detect": "crccheck+explode"}
        as_float = av.AudioResampler(format="fltp")
        frames = [part for frame in container.decode(stream) for part in as_float.resample(frame)]
        parts = [part.to_ndarray() for part in [*frames, *as_float.resample(None)]]
        rate, stated = int(stream.rate), stream.duration
        count = sum(part.shape[1] for part in parts)
        # Its reader leaves out a frame that it cannot find.
        if kind == "flac" and stated is not None and count != round(stated * stream.time_base * rate):
            raise ValueError("the file is damaged: it has fewer samples than its header states")
    samples = np.concatenate(parts, axis=1).mean(axis=0) if parts else np.zeros(0, np.float32)
    if not np.isfinite(samples).all():
        raise ValueError("the sound has samples that are no finite numbers")
    return Sound(samples.astype(np.float32), rate)


def at_rate(sound: Sound, rate: int) -> NDArray[np.float32]:
    """Return the samples at another rate, by a polyphase filter."""
    if sound.rate == rate:
        return sound.samples
    from scipy.signal import resample_poly

    common = math.gcd(sound.rate, rate)
    resampled = resample_poly(sound.samples, rate // common, sound.rate // common)
    return np.asarray(resampled, np.float32)


def prepared(sound: Sound, extractor: Any) -> NDArray[np.float32]:
    """Return the samples that a feature extractor takes, which would cut a longer sound.

    Raises ValueError for one that is too long or too short.
    """
    seconds, longest = len(sound.samples) / sound.rate, extractor.n_samples / extractor.sampling_rate
    if seconds < SHORTEST_SECONDS:
        raise ValueError(
            f"the sound is {seconds:.3f} s long, and {SHORTEST_SECONDS} s is the shortest; leave it out"
        )
    samples = at_rate(sound, extractor.sampling_rate)
    if len(samples) > extractor.n_samples:
        raise ValueError(
            f"the sound is {seconds:.2f} s long, and the model takes {longest:g} s; divide it into samples"
        )
    return samples
