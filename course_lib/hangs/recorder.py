"""What a process is doing, in a file that others can read while it stands still. Standard library only.

The file is mapped into memory: a note costs a few microseconds, and stays when the process is stopped or killed.
It holds how much was done, what is being done, and a ring of the last collectives that the process entered.
"""

import mmap
import re
import struct
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

COLLECTIVES = 64  # the last ones that are kept
TEXT_BYTES = 240  # of one note
HEADER = struct.Struct("<Qqd")  # notes so far, step, time of the last note
NOW = struct.Struct(f"<H{TEXT_BYTES}s")  # what is being done, or nothing
ENTRY = struct.Struct(f"<Q?H{TEXT_BYTES}s")  # number, left again, text
CLUSTER = HEADER.size + NOW.size  # whom it waits for, in NOW's form
RING = CLUSTER + NOW.size
SIZE = RING + COLLECTIVES * ENTRY.size


@dataclass(frozen=True)
class CollectiveCall:
    """One call that entered one or more collectives.

    number  from 1, in the order of the process's calls
    text    the call and its collectives: "train_step: CollectiveReduceV2 float32[330]"
    left    the call has come back
    """

    number: int
    text: str
    left: bool


@dataclass(frozen=True)
class TaskRecord:
    """A process's file, read.

    notes        grows with whatever the process does
    step         the last one that it named, or None
    seconds      of the system's clock at the last note
    now          the call that it is in, or ""
    cluster      who it says that it is, and whom it waits for: "worker 0 of worker: a:1 b:2"; or ""
    collectives  the last ones, in order
    """

    notes: int
    step: int | None
    seconds: float
    now: str
    cluster: str
    collectives: tuple[CollectiveCall, ...]


class Recorder:
    """Writes a process's file; for its threads, too."""

    def __init__(self, path: Path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_suffix(".new").write_bytes(bytes(SIZE))
        with open(path.with_suffix(".new"), "r+b") as file:
            self._map = mmap.mmap(file.fileno(), SIZE)
        path.with_suffix(".new").replace(path)  # so that a reader never sees half a file
        self._notes = self.collectives = 0
        self._step = -1
        self._lock = threading.RLock()  # an object that is freed in between can import
        self._head()

    def find_spec(self, name, path=None, target=None) -> None:
        """Note that a module is about to be loaded, as one of sys.meta_path; Python finds it elsewhere."""
        with self._lock:
            self._head()

    def step(self, number: int) -> None:
        """Say which step is done."""
        with self._lock:
            self._step = int(number)
            self._head()

    def join(self, cluster: bytes) -> None:
        """Note the cluster that the process is about to join."""
        with self._lock:
            NOW.pack_into(self._map, CLUSTER, len(cluster[:TEXT_BYTES]), cluster)
            self._head()

    def enter(self, text: bytes, collective: bool) -> int:
        """Note a call before it is made; what to give to `leave`."""
        with self._lock:
            NOW.pack_into(self._map, HEADER.size, len(text[:TEXT_BYTES]), text)
            if collective:
                self.collectives += 1
                ENTRY.pack_into(
                    self._map, self._place(self.collectives), self.collectives, False, len(text[:TEXT_BYTES]), text
                )
            self._head()
            return self.collectives if collective else 0

    def leave(self, number: int) -> None:
        """Note that a call came back."""
        with self._lock:
            NOW.pack_into(self._map, HEADER.size, 0, b"")
            if number:
                struct.pack_into("<?", self._map, self._place(number) + 8, True)
            self._head()

    def _place(self, number: int) -> int:
        return RING + (number - 1) % COLLECTIVES * ENTRY.size

    def _head(self) -> None:
        self._notes += 1
        HEADER.pack_into(self._map, 0, self._notes, self._step, time.time())


def read(path: Path) -> TaskRecord | None:
    """A process's file as it is now; None where there is none."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    notes, step, seconds = HEADER.unpack_from(content)
    now, cluster = (NOW.unpack_from(content, place) for place in (HEADER.size, CLUSTER))
    entries = [ENTRY.unpack_from(content, RING + k * ENTRY.size) for k in range(COLLECTIVES)]
    calls = (CollectiveCall(number, _text(text, size), left) for number, left, size, text in sorted(entries) if number)
    return TaskRecord(
        notes, None if step < 0 else step, seconds, _text(*reversed(now)), _text(*reversed(cluster)), tuple(calls)
    )


def notes(path: Path) -> int:
    """How much a process has done; 0 before its first note."""
    try:
        with open(path, "rb") as file:
            return HEADER.unpack(file.read(HEADER.size))[0]
    except (OSError, struct.error):
        return 0


def _text(content: bytes, length: int) -> str:
    return content[:length].decode(errors="replace")


def call_name(name: str) -> str:
    """A traced function's name without its counters, which differ from process to process."""
    return re.sub(r"^(__inference_|__forward_|__backward_)|_\d+$", "", name)


def encoded(call: str, collectives: list[str]) -> bytes:
    """A note's text, cut to what fits, with a sign of all of it."""
    text = call + (f": {', '.join(collectives)}" if collectives else "")
    if len(content := text.encode()) > TEXT_BYTES:
        import zlib

        content = content[: TEXT_BYTES - 14] + b"... %08x" % zlib.crc32(content)
    return content


_own: list[Recorder] = []  # this process's


def record(folder: Path, task: str) -> Recorder:
    """From now on this process keeps a record, of its imports too; a second call goes on with the first one's."""
    if not _own:
        _own.append(Recorder(path_of(folder, task)))
        sys.meta_path.insert(0, _own[0])
    return _own[0]


def step(number: int) -> None:
    """Say which step is done, where this process keeps a record."""
    for recorder in _own:
        recorder.step(number)


def collectives() -> int:
    """How many collective calls this process has entered; 0 where it keeps no record."""
    return sum(recorder.collectives for recorder in _own)


def path_of(folder: Path, task: str) -> Path:
    """Where a task's file lies."""
    return Path(folder) / "records" / f"{task}.record"
