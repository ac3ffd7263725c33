"""How records leave a submission's process: through an audit hook, which no name of the process leads to.

Standard library and answers.py. Code that shares a process with the learner's can be called, replaced and read by it.
So the key that makes a record genuine is known to the hook alone, which sends what the runner's own frames hold
and nothing else. The hook also ends the process when code reaches for what could undo that: other objects of the
process, its frames, its memory.

Source: sys.addaudithook, and the table of audit events, in Python's documentation.
"""

import gc
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from types import FrameType

RECORD, LOOK = "course.record", "course.look"  # the runner's own audit events
REFUSED_EXIT = 97
LOOK_AGAIN = 10  # a look during a probe may take a tenth of its time
# What no lesson needs, and what leads to the hook or lets frames be watched from outside.
REFUSED = frozenset(
    "gc.get_objects gc.get_referrers gc.get_referents sys._current_frames sys._current_exceptions sys.settrace "
    "sys.setprofile sys.monitoring.register_callback ctypes.dlopen ctypes.dlsym ctypes.dlsym/handle ctypes.addressof "
    "ctypes.cdata ctypes.cdata/buffer ctypes.call_function ctypes.string_at ctypes.wstring_at ctypes.PyObj_FromPtr".split()
)
_CODE = ("__code__", "__defaults__", "__kwdefaults__", "__bases__")


def open_channel(descriptor: int, key: str, base: FrameType, guard: tuple[Callable, Callable], questions: tuple) -> None:
    """Install the hook, for good.

    From here on `sys.audit(RECORD)` in the runner sends its local variable `record`, and `sys.audit(LOOK)`, from
    anywhere, tells when something that probes rely on has been replaced.

    descriptor  a socket's, closed to everybody who does not know its number
    key         begins every genuine line
    base        the runner's frame, in whose module every frame above it must lie too
    guard       guard.take_snapshot's; what has changed goes with every record that has answers
    questions   a record with answers comes from a frame whose `question` is one of these very objects
    """
    genuine, refused, code_names, dumps, any_ = base.f_globals, REFUSED, _CODE, json.dumps, any
    changed, knows = guard
    frame_of, exit_, write, process_of, process = sys._getframe, os._exit, os.write, os.getpid, os.getpid()
    disable, enable, mask, every_signal = gc.disable, gc.enable, signal.pthread_sigmask, signal.valid_signals()
    block, restore, clock, due = signal.SIG_BLOCK, signal.SIG_SETMASK, time.perf_counter, 0.0

    def send(record: object) -> None:
        line = f"{key}{dumps(record)}\n".encode()
        while line:
            line = line[write(descriptor, line) :]

    def refuse(what: str) -> None:
        send({"refused": what})
        exit_(REFUSED_EXIT)

    def look() -> None:
        nonlocal due
        began = clock()
        if began >= due:
            if name := changed():
                send({"changed": name})
            due = clock() + LOOK_AGAIN * (clock() - began)

    def record() -> None:
        top = frame = frame_of(3)
        while frame is not base:
            if frame is None or frame.f_globals is not genuine:
                refuse("the grader's own functions")
            frame = frame.f_back
        told = top.f_locals["record"]
        if "answers" in told:
            if not any_(question is top.f_locals["question"] for question in questions):
                refuse("the grader's own questions")
            told = {**told, "changed": changed()}
        send(told)

    def react(event: str) -> None:
        before = mask(block, every_signal)
        disable()  # neither a signal's handler nor a finalizer runs beside the hook's own frames
        if process_of() != process:  # a fork that came back from its cell
            exit_(REFUSED_EXIT)
        if event == RECORD:
            record()
        elif event == LOOK:
            look()
        else:
            refuse(event)
        enable()
        mask(restore, before)

    def hook(event: str, arguments: tuple) -> None:
        if event == RECORD or event == LOOK or event in refused:
            react(event)
        elif event == "object.__setattr__" and arguments[1] in code_names and knows(arguments[0]):
            react(f"the code of {arguments[0].__name__}")
        elif event == "open" and is_memory(*arguments):
            react("the memory of a process")

    stat, system, writing, text = os.stat, os.stat("/proc").st_dev, os.O_WRONLY | os.O_RDWR, (str, bytes)

    def is_memory(path: object, mode: object, flags: int) -> bool:
        """Whether a file under /proc is opened for writing, other than the one that resets a peak of memory."""
        if not flags & writing or type_(path) not in text or path in resets:
            return False
        try:
            return stat(path).st_dev == system
        except OSError:  # not there yet, or relative to an open folder
            return path in memories

    type_, resets, memories = type, ("/proc/self/clear_refs",), ("mem", b"mem")
    sys.addaudithook(hook)

