"""How records leave a submission's process: through an audit hook, which no name of the process leads to.

Standard library. Code that shares a process with the learner's can be called, replaced and read by it.
So the key that makes a record genuine is known to the hook alone, which sends what the runner's own frames hold
and nothing else. The hook also ends the process when code reaches for what could undo that: other objects of the
process, its frames, its memory.

Source: sys.addaudithook, and the table of audit events, in Python's documentation.
"""

import _signal
import gc
import hashlib
import json
import os
import re
import signal
import sys
from collections.abc import Callable
from types import CodeType, FrameType, FunctionType

RECORD, LOOK, CHECK = "course.record", "course.look", "course.check"  # the runner's own audit events
REFUSED_EXIT = 97
KEY_BYTES = 32
LARGEST_RECORD = 2**25 + 2**12  # twice a question's answers, whose quotes are escaped
_VALUE = rb'"(?:[^"\\]++|\\.)*+"|-?\d{1,20}|true|false|null'
_FORM = re.compile(rb'\{(?:"\w{1,40}": (?:%b)(?:, (?=")|(?=\})))*+\}' % _VALUE, re.ASCII)
# What no lesson needs, and what leads to the hook or lets frames be watched from outside.
REFUSED = frozenset(
    "sys.addaudithook gc.get_objects gc.get_referrers gc.get_referents sys._current_frames sys._current_exceptions "
    "sys.settrace sys.setprofile sys.monitoring.register_callback ctypes.dlopen ctypes.dlsym ctypes.dlsym/handle "
    "ctypes.addressof ctypes.cdata ctypes.cdata/buffer ctypes.call_function ctypes.string_at ctypes.wstring_at "
    "ctypes.PyObj_FromPtr".split()
)
_CODE = ("__code__", "__defaults__", "__kwdefaults__", "__bases__")


def open_channel(descriptor: int, base: FrameType, guard: list[Callable], questions: tuple) -> None:
    """Install the hook, for good.

    From here on `sys.audit(RECORD)` in the runner sends its local variable `record`; `sys.audit(LOOK)`, from anywhere,
    reports when what probes read state with has been replaced, and CHECK when anything that they rely on has been.

    descriptor  a socket's; the key that seals every line is read from it, so that no other frame holds it
    base        the runner's frame, in whose module every frame above it must lie too
    guard       guard.take_snapshot's two functions, which are taken out of the list: no frame may lead to them
    questions   a record with answers comes from a frame whose `question` is one of these very objects
    """
    genuine, ours = base.f_globals, frozenset(_codes(base.f_globals))
    asks, refused, code_names, any_ = genuine["_look"].__code__, REFUSED, _CODE, any
    # C's own encoder: json.dumps is Python, and reads names of its module that learner code may have replaced.
    text_of = json.encoder.encode_basestring_ascii
    encode = json.encoder.c_make_encoder(None, None, text_of, None, ": ", ", ", False, False, True)
    knows, changed = guard.pop(), guard.pop()
    frame_of, exit_, write, process_of, process = sys._getframe, os._exit, os.write, os.getpid, os.getpid()
    disable, enable, mask, every_signal = gc.disable, gc.enable, signal.pthread_sigmask, signal.valid_signals()
    block, restore = signal.SIG_BLOCK, signal.SIG_SETMASK

    key, count, seal = b"", 0, sealed
    while len(key) < KEY_BYTES:
        key += os.read(descriptor, KEY_BYTES - len(key))

    def send(record: object) -> None:
        nonlocal count
        line = seal(key, count, "".join(encode(record, 0)).encode())
        count += 1
        while line:
            line = line[write(descriptor, line) :]

    def refuse(what: str) -> None:
        send({"refused": what})
        exit_(REFUSED_EXIT)

    collected, callbacks, tuple_, can_call = tuple(gc.callbacks), gc.callbacks, tuple, callable
    switch, switch_seconds, never = sys.setswitchinterval, sys.getswitchinterval(), 1000.0
    handler_of = _signal.getsignal
    handlers = tuple((number, handler_of(number)) for number in every_signal)

    def disturbed() -> str:
        """Whether learner code may run by itself while a probe's answers are on their way."""
        if any_(handler_of(number) is not handler and can_call(handler_of(number)) for number, handler in handlers):
            return "a signal's handler"
        return "the garbage collector's callbacks" if tuple_(callbacks) != collected else ""

    def look(near: bool) -> None:
        switch(never)  # no thread of the learner's gets between here and the record, unless this one waits
        if name := disturbed() or changed(near):
            send({"changed": name})

    def record() -> None:
        """Send the runner's record, if every frame between here and the base is of the runner's own code."""
        top = frame = frame_of(3)
        while frame is not base:
            if frame is None or frame.f_globals is not genuine or frame.f_code not in ours:
                refuse("the grader's own functions")
            frame = frame.f_back
        sent = top.f_locals["record"]
        if "answers" in sent:
            is_asked = top.f_code is asks and top.f_back is base
            if not is_asked or not any_(question is top.f_locals["question"] for question in questions):
                refuse("the grader's own questions")
            switch(switch_seconds)
        send(sent)

    def react(event: str) -> None:
        before = mask(block, every_signal)
        disable()  # neither a signal's handler nor a finalizer runs beside the hook's own frames
        if process_of() != process:  # a fork that came back from its cell
            exit_(REFUSED_EXIT)
        try:
            if event == RECORD:
                record()
            elif event == LOOK or event == CHECK:
                look(near=event == LOOK)
            else:
                refuse(event)
        except BaseException:  # would carry these frames to whoever catches it
            try:
                refuse("what the grader itself needs")
            finally:
                exit_(REFUSED_EXIT)
        if event != CHECK:  # then no finalizer runs before the record is out
            enable()
        mask(restore, before)

    def hook(event: str, arguments: tuple) -> None:
        if event == RECORD or event == LOOK or event == CHECK or event in refused:
            react(event)
        elif event == "object.__setattr__" and arguments[1] in code_names and knows(arguments[0]):
            react(f"the code of {arguments[0].__name__}")

    sys.addaudithook(hook)


def sealed(key: bytes, count: int, record: bytes, seal: Callable = hashlib.blake2b) -> bytes:
    """The line of a genuine record: only who has the key can make it, and only once at its place in the order."""
    return b"%b %b\n" % (seal(b"%d " % count + record, key=key, digest_size=16).hexdigest().encode(), record)


def has_form(record: bytes) -> bool:
    """Whether a record is as the runner writes it, one object of plain values, and not too long; in linear time."""
    return len(record) <= LARGEST_RECORD and _FORM.fullmatch(record) is not None


class Unsealed:
    """The other end: finds the genuine records among whatever comes out of the socket.

    size  bytes that came so far
    """

    def __init__(self, key: bytes) -> None:
        self._key, self._count, self._rest, self.size = key, 0, bytearray(), 0

    def take(self, piece: bytes) -> list[bytes]:
        """The records that end in this piece; a line without its seal, or out of order, is passed over."""
        self.size += len(piece)
        self._rest += piece
        if b"\n" not in piece:
            return []
        *lines, self._rest = self._rest.split(b"\n")
        return [bytes(record) for line in lines if (record := self._record(line)) is not None]

    def _record(self, line: bytearray) -> bytearray | None:
        record = line.partition(b" ")[2]
        if line + b"\n" != sealed(self._key, self._count, record):
            return None
        self._count += 1
        return record if has_form(record) else None


def _codes(module: dict[str, object]) -> list[CodeType]:
    return [it.__code__ for it in module.values() if isinstance(it, FunctionType) and it.__globals__ is module]
