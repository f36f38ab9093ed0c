"""The program of the planning process: reads calls of pure functions from stdin, writes results to stdout.

It has no connection to the cluster. The kernel ends it when a call exceeds its processor time, also inside
a single long operation; an allocation beyond its memory fails, which the process reports.
"""

import contextlib
import os
import pickle
import resource
import signal
import sys
import traceback
from pathlib import Path
from typing import Any, BinaryIO

from megatron_operator.api.errors import InvalidRecipeError
from megatron_operator.controller.plan_messages import LENGTH, Call, Reply, frame


def serve(requests: BinaryIO, replies: BinaryIO, cpu_seconds: float) -> None:
    """Execute calls until the end of `requests`, or until one runs out of memory."""
    config: Any = None
    while header := requests.read(LENGTH.size):
        (length,) = LENGTH.unpack(header)
        payload = requests.read(length)
        # This imports the function's module, which is not the recipe's fault.
        call: Call = pickle.loads(payload)
        if call.new_config is not None:
            config = pickle.loads(call.new_config)
        # Without a handler, SIGPROF ends the process.
        signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
        try:
            reply = frame(_execute(call, config))
        except MemoryError:
            reply = frame(Reply(out_of_memory=True))
        signal.setitimer(signal.ITIMER_PROF, 0)
        replies.write(reply)
        replies.flush()


def _execute(call: Call, config: Any) -> Reply:
    arguments = (*call.arguments, config) if call.with_config else call.arguments
    try:
        return Reply(result=call.function(*arguments))
    except InvalidRecipeError as error:
        return Reply(invalid=error)
    except MemoryError:
        raise
    except Exception as error:
        error.add_note("in the planning process:\n" + traceback.format_exc(limit=-8))
        return Reply(error=_picklable(error))


def _picklable(error: Exception) -> Exception:
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(repr(error))
    return error


def main() -> None:
    """Entry point: the limits are arguments, processor seconds and bytes."""
    cpu_seconds, memory = float(sys.argv[1]), int(sys.argv[2])
    resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        # Of the operator's processes, the kernel should choose this one.
        Path("/proc/self/oom_score_adj").write_text("1000")
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    serve(sys.stdin.buffer, replies, cpu_seconds)


if __name__ == "__main__":
    main()
