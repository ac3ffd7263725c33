"""What one process looks like while it stands still: gathered from /proc, its record, and its own stacks.

Nothing here needs a privilege: a process of the same user may read these files and send a signal, at which Python's
faulthandler writes the stacks of all threads, even while they wait inside TensorFlow. Linux; elsewhere what cannot be
read is left out.
"""

import faulthandler
import itertools
import os
import re
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

import psutil

from course_lib import tcp_bytes
from course_lib.hangs import recorder

STACKS_SIGNAL = getattr(signal, "SIGRTMIN", signal.SIGUSR1 - 3) + 3  # nobody else's, where there are such signals
ANSWER_SECONDS = 2.0  # for a process to write its stacks
FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)$')


@dataclass(frozen=True)
class Frame:
    """One line of a stack."""

    file: str
    line: int
    function: str

    @property
    def framework(self) -> bool:
        """Neither the program's own nor the course's."""
        return "/site-packages/" in self.file or "/lib/python" in self.file or self.file.startswith("<frozen")

    @property
    def course(self) -> bool:
        return "/course_lib/" in self.file

    def __str__(self) -> str:
        return f"{Path(self.file).name}:{self.line} in {self.function}"


@dataclass(frozen=True)
class Evidence:
    """What is known of one task.

    task          "worker 0"
    state         "running", "stopped" (by a signal), "returned" (its program), or "ended"
    threads       stacks of its Python threads, innermost frame first; the main thread first
    waits         kernel functions in which its threads wait, with their number
    main_wait     the one in which its main thread waits, or ""
    notes         grows with whatever it does
    step          the last one that it named
    quiet         seconds since it last did anything that is recorded
    now           the call that it is in, or ""
    cluster       who it says that it is, and whom it waits for, or ""
    collectives   the last ones that it entered
    links         its TCP connections: state, other end, bytes not yet acknowledged, tries so far
    sent_bytes    by its open connections; None where it is not counted
    memory_bytes  resident
    cpu_seconds   used so far
    busy          cores that it used of late; None where that is not known
    """

    task: str
    state: str = "running"
    threads: tuple[tuple[Frame, ...], ...] = ()
    waits: dict[str, int] = field(default_factory=dict)
    main_wait: str = ""
    notes: int = 0
    step: int | None = None
    quiet: float | None = None
    now: str = ""
    cluster: str = ""
    collectives: tuple[recorder.CollectiveCall, ...] = ()
    links: tuple[tuple[str, str, int, int], ...] = ()
    sent_bytes: int | None = None
    memory_bytes: int | None = None
    cpu_seconds: float | None = None
    busy: float | None = None

    @property
    def stack(self) -> tuple[Frame, ...]:
        """The main thread's."""
        return self.threads[0] if self.threads else ()

    @property
    def own(self) -> Frame | None:
        """The innermost line of the program itself."""
        return next((frame for frame in self.stack if not frame.framework and not frame.course), None)

    @property
    def addresses(self) -> dict[str, str]:
        """Of the tasks of its cluster, "worker 1" to "host:port"."""
        jobs = [job.partition(": ") for job in self.cluster.partition(" of ")[2].split("; ")]
        return {f"{name} {place}": address for name, _, all in jobs for place, address in enumerate(all.split())}

    @property
    def entered(self) -> int:
        """Collectives entered so far."""
        return self.collectives[-1].number if self.collectives else 0

    @property
    def waiting(self) -> recorder.CollectiveCall | None:
        """The collective call that it is in."""
        return next((one for one in reversed(self.collectives) if not one.left), None)

    def as_json(self) -> dict:
        return asdict(self)

    @classmethod
    def from_json(cls, fields: dict) -> "Evidence":
        frames = tuple(tuple(Frame(**frame) for frame in thread) for thread in fields["threads"])
        entered = tuple(recorder.CollectiveCall(**one) for one in fields["collectives"])
        return cls(**{**fields, "threads": frames, "collectives": entered, "links": tuple(map(tuple, fields["links"]))})


def answer_with_stacks(folder: Path, task: str) -> None:
    """From now on this process writes the stacks of all its threads when it gets the signal."""
    path = _stacks_path(folder, task)
    path.parent.mkdir(parents=True, exist_ok=True)
    # Kept open by the C handler; the file object must live as long as the process.
    _open.append(open(path, "wb", buffering=0))
    faulthandler.register(STACKS_SIGNAL, file=_open[-1], all_threads=True, chain=False)


_open: list = []


def gather(folder: Path, task: str, pid: int | None, state: str = "running", busy: float | None = None) -> Evidence:
    """What a task looks like now.

    folder  that of its record and its stacks
    pid     its process, or None when it has ended
    state   "returned" where its program has
    busy    cores that it used of late
    """
    record = recorder.read(recorder.path_of(folder, task))
    known = {}
    if record:
        known = {
            "notes": record.notes,
            "step": record.step,
            "quiet": max(0.0, time.time() - record.seconds),
            "now": record.now,
            "cluster": record.cluster,
            "collectives": record.collectives,
        }
    seen = {}
    with suppress(psutil.Error, OSError):  # it has just ended
        seen = {} if pid is None else {"busy": busy, **_seen(folder, task, pid, state)}
    ended = "returned" if state == "returned" else "ended"
    return Evidence(task, **{"state": ended, **known, **seen})


def _seen(folder: Path, task: str, pid: int, state: str) -> dict:
    """What the system shows of a process, and its stacks.

    Raises  psutil.Error or OSError when it has ended
    """
    process = psutil.Process(pid)
    stopped = process.status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
    times = process.cpu_times()
    return {
        "state": "stopped" if stopped else state,
        "threads": () if stopped else _stacks(folder, task, pid),
        "waits": _waits(pid),
        "main_wait": _kernel_function(Path(f"/proc/{pid}/task/{pid}/wchan")),
        "links": _links(pid),
        "sent_bytes": sent_bytes(pid),
        "memory_bytes": process.memory_info().rss,
        "cpu_seconds": times.user + times.system,
    }


def _stacks_path(folder: Path, task: str) -> Path:
    return Path(folder) / "records" / f"{task}.stacks"


def _stacks(folder: Path, task: str, pid: int) -> tuple[tuple[Frame, ...], ...]:
    """Ask a process for its stacks; none when it does not answer."""
    path = _stacks_path(folder, task)
    if not path.exists() or not _catches_signal(pid):
        return ()
    before, until = path.stat().st_size, time.monotonic() + ANSWER_SECONDS
    os.kill(pid, STACKS_SIGNAL)
    size = before
    while time.monotonic() < until:  # nothing announces that a file has been written whole
        time.sleep(0.02)
        grown = path.stat().st_size
        if grown > before and grown == size:
            break
        size = grown
    return parse_stacks(path.read_bytes()[before:].decode(errors="replace"))


def _catches_signal(pid: int) -> bool:
    """Whether the signal has a handler; it would end a process that has none yet."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:  # not Linux: the file is there, and the handler comes with it
        return True
    return bool(int(re.search(r"^SigCgt:\s*(\w+)", status, re.MULTILINE)[1], 16) >> (STACKS_SIGNAL - 1) & 1)


def parse_stacks(text: str) -> tuple[tuple[Frame, ...], ...]:
    """faulthandler's text as frames; the main thread, which it writes last, first."""
    threads: list[list[Frame]] = []
    for line in text.splitlines():
        if line.startswith(("Thread 0x", "Current thread 0x")):
            threads.append([])
        elif threads and (found := FRAME.match(line)):
            threads[-1].append(Frame(found["file"], int(found["line"]), found["function"]))
    return tuple(tuple(itertools.takewhile(_below_launcher, thread)) for thread in reversed(threads))


def _below_launcher(frame: Frame) -> bool:
    """Not one of the lines that start a task's program."""
    return not frame.file.endswith(("/course_lib/cluster/task.py", "/course_lib/cluster/__main__.py"))


def _waits(pid: int) -> dict[str, int]:
    counted = Counter(map(_kernel_function, Path(f"/proc/{pid}/task").glob("*/wchan")))
    return {name: count for name, count in counted.most_common() if name}


def _kernel_function(path: Path) -> str:
    try:
        return path.read_text().strip().strip("0")  # "0" for a thread that does not wait
    except OSError:
        return ""


LISTENS = "0A"
STATES = {"01": "established", "02": "no answer yet", LISTENS: "listens", "08": "closed by the other end"}


def _sockets(pid: int) -> Iterator[list[str]]:
    """The process's own TCP sockets, as proc(5) describes /proc/PID/net/tcp, in its own network namespace."""
    own = set()
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            own.add(os.readlink(path))
    for name in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]:
                if f"socket:[{(part := line.split())[9]}]" in own and part[3] in STATES:
                    yield part


def _links(pid: int) -> tuple[tuple[str, str, int, int], ...]:
    with suppress(OSError):  # not Linux
        return tuple(
            sorted(
                (STATES[part[3]], _address(part[1 if part[3] == LISTENS else 2]), *_unsent(part))
                for part in _sockets(pid)
            )
        )
    return ()


def _unsent(part: list[str]) -> tuple[int, int]:
    return int(part[4].partition(":")[0], 16), int(part[6], 16)


def sent_bytes(pid: int) -> int | None:
    """By a process's open connections; None where they are not counted, or by another network namespace's kernel."""
    with suppress(OSError):
        if os.readlink(f"/proc/{pid}/ns/net") == os.readlink("/proc/self/ns/net"):
            ports = {int(part[1].rpartition(":")[2], 16) for part in _sockets(pid) if part[3] != LISTENS}
            named = {str(port): f":{port}" for port in ports}
            return int(sum(tcp_bytes.sent_bytes(named).values()))
    return None


def _address(text: str) -> str:
    host, port = text.split(":")
    last = bytes.fromhex(host[-8:])[::-1]  # of an IPv6 address, the part that holds an IPv4 one
    return f"{'.'.join(map(str, last))}:{int(port, 16)}"
