"""Tracebacks can be sent to the coordinating rank."""

import pickle
import traceback

from megatron_trainer.worker import tracebacks


class FrameWithCode(traceback.FrameSummary):
    """A frame as of Python 3.13, with its code object."""

    def __init__(self) -> None:
        super().__init__("save.py", 7, "write", line="os.write(file, data)")
        self._code = compile("", "save.py", "exec")


def test_a_frame_is_pickled_without_its_code() -> None:
    tracebacks.make_picklable()
    try:
        raise OSError(28, "No space left on device")
    except OSError as error:
        frames = traceback.extract_tb(error.__traceback__)
    assert pickle.loads(pickle.dumps(frames)).format() == frames.format()
    reduced = tracebacks.as_text(FrameWithCode())
    assert pickle.loads(pickle.dumps(reduced))[1] == ("save.py", 7, "write", "os.write(file, data)")
