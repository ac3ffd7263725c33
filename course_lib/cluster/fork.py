"""Fork a clean child: its own environment, files and signal handlers. Needs Linux."""

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

SPACE = "COURSE_SPACE"  # a variable long enough for what `_replace_environment` writes over it
SPACE_BYTES = 2 * 4096  # a path and a name
# What to start a process with, so that its forks can show their own environment.
ENVIRONMENT_SPACE = {SPACE: "-" * SPACE_BYTES}


def fork(work: Callable[[], int], environment: Mapping[str, str], keep: int) -> Forked:
    """Call `work` in a fork, which ends with the exit code that it returns.

    environment  replaces the parent's
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
            _reset_parent_state()
            _replace_environment(environment)
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


def _reset_parent_state() -> None:
    """Reset event loop, signals and random numbers; never collect the parent's objects, whose files are closed here."""
    gc.freeze()
    asyncio.set_event_loop(None)
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    tempfile.tempdir = None
    if "numpy.random" in sys.modules:  # Python's own generator does this by itself
        sys.modules["numpy.random"].seed()


def _replace_environment(environment: Mapping[str, str]) -> None:
    """Set the environment in Python, in C, and where other processes read it (/proc)."""
    call = ctypes.CDLL(None).getenv
    call.restype = ctypes.c_void_p
    written_over = call(SPACE.encode())
    os.environ.clear()
    os.environ.update({name: value for name, value in environment.items() if name != SPACE})
    if written_over:  # the kernel shows the block that the parent's parent was started with
        marks = "".join(f"\0{name}={environment[name]}" for name in MARKS).encode()[: SPACE_BYTES - 1] + b"\0"
        ctypes.memmove(written_over, marks, len(marks))
