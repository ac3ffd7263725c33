"""A fork that is as good as a new Python: what it says of itself, what it keeps of its parent, and how to follow it. Needs Linux."""

import asyncio
import ctypes
import gc
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping

from course_lib.cluster.processes import MARKS, Forked

ROOM = "COURSE_ROOM"  # a variable as long as what `_become` may have to write over it
ROOM_BYTES = 2 * 4096  # a path and a name


def room() -> dict[str, str]:
    """What a process has to be started with, for its forks to have an environment of their own."""
    return {ROOM: "-" * ROOM_BYTES}


def fork(work: Callable[[], int], environment: Mapping[str, str], keep: int) -> Forked:
    """Call `work` in a fork, which ends with the exit code that it returns.

    environment  all of the fork's
    keep         an open file that the fork keeps, beside its own stdin, stdout and stderr
    Returns      the fork, with its stdout and stderr
    """
    (out, their_out), (err, their_err) = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.setpgid(0, 0)
            _keep_only(their_out, their_err, keep)
            _forget_the_parent()
            _become(environment)
            code = work()
            sys.stdout.flush()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    os.setpgid(pid, pid)  # here too: whoever signals the group next must find it
    os.close(their_out)
    os.close(their_err)
    return Forked(pid, stdout=open(out, "rb"), stderr=open(err, "rb"))


def _keep_only(out: int, err: int, keep: int) -> None:
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (out, 1), (err, 2)):
        os.dup2(source, target)
    os.closerange(3, keep)
    os.closerange(keep + 1, os.sysconf("SC_OPEN_MAX"))


def _forget_the_parent() -> None:
    """Leave its event loop, signals and random numbers; keep its objects for good, whose files have other owners now."""
    gc.freeze()
    asyncio.set_event_loop(None)
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    tempfile.tempdir = None
    if "numpy.random" in sys.modules:  # Python's own generator sees to itself
        sys.modules["numpy.random"].seed()


def _become(environment: Mapping[str, str]) -> None:
    """Have an environment in Python, in C, and for whoever looks at this process from outside."""
    call = ctypes.CDLL(None).getenv
    call.restype = ctypes.c_void_p
    written_over = call(ROOM.encode())
    os.environ.clear()
    os.environ.update({name: value for name, value in environment.items() if name != ROOM})
    if written_over:  # the kernel shows the block that the parent's parent was started with
        marks = "".join(f"\0{name}={environment[name]}" for name in MARKS).encode()[: ROOM_BYTES - 1] + b"\0"
        ctypes.memmove(written_over, marks, len(marks))
