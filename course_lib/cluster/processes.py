"""The local cluster's calls to the operating system: ports, cores, pipes, and the end of every process.

Needs Linux or macOS.
"""

import asyncio
import os
import signal
import socket
import subprocess
import threading
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import IO

import psutil

from course_lib.errors import CourseError

LEAVING_SECONDS = 5  # for a process to end, and for its last lines to arrive
MARKS = MARK, TASK = "COURSE_FOLDER", "COURSE_TASK"  # in the environment of every task, and so of what a task starts


@dataclass(frozen=True)
class Forked:
    """A process forked here or elsewhere, and our ends of its pipes: the part of `subprocess.Popen` that is used."""

    pid: int
    stdin: IO | None = None
    stdout: IO | None = None
    stderr: IO | None = None

    def wait(self) -> int | None:
        """Wait for its end; the exit code, or None where another process is its parent."""
        try:
            return psutil.Process(self.pid).wait()
        except psutil.NoSuchProcess:
            return None


def hold_port(number: int) -> list[socket.socket]:
    """Reserve a port for a server in another process: bound here, and not listening.

    On Linux a second socket may bind and listen as long as both allow reuse and
    this one does not listen; the system gives the port to nobody else meanwhile.
    TensorFlow's and JAX's servers allow reuse. Another cluster could bind it
    too, so a Unix socket's name, which is unique, is taken with the port.

    number   0 takes a free one
    Returns  what to keep open; the port itself is the first
    Raises   CourseError when the port is taken
    """
    held, name = socket.socket(), socket.socket(socket.AF_UNIX)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        held.bind(("", number))
        if hasattr(os, "pidfd_open"):  # Linux, where such names exist
            name.bind(f"\0course-cluster-port-{held.getsockname()[1]}")
    except OSError as error:
        raise CourseError(
            f"port {number} cannot be used ({os.strerror(error.errno)}): name a free one, or leave ports out."
        ) from None
    return [held, name]


def pin(pid: int, position: int, cpus: int | None) -> None:
    """Give a task its own cores where the system can; with too few cores, tasks share them."""
    if cpus and hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        with suppress(ProcessLookupError):
            os.sched_setaffinity(pid, {cores[(position * cpus + core) % len(cores)] for core in range(cpus)})


def signal_group(group: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):  # macOS gives the second for a group of zombies
        os.killpg(group, number)


async def ended(process: subprocess.Popen | Forked) -> int:
    """Wait for a process and end its group; its exit code.

    asyncio's own wait also waits until the pipes close (cpython issue 119710),
    and a grandchild may keep them open.
    """
    loop = asyncio.get_running_loop()
    code: asyncio.Future[int] = loop.create_future()

    def wait() -> None:
        answer = process.wait()
        signal_group(process.pid, signal.SIGKILL)
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(code.set_result, answer)

    threading.Thread(target=wait, daemon=True).start()
    return await code


def marked(folder: str, task: str | None = None, group: int | None = None) -> list[psutil.Process]:
    """The processes of a job's tasks, or of one task, wherever they have moved.

    group  of which all processes count, whatever their environment; one that was killed, until it is gone
    """
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):  # ended meanwhile, or another user's
            if os.getpgid(process.pid) == group:
                found.append(process)
            elif (environment := process.environ()).get(MARK) == folder and task in (None, environment[TASK]):
                found.append(process)
    return found


def end_all(find: Callable[[], Iterable[psutil.Process]]) -> None:
    """Kill what `find` finds, until it finds nothing new."""
    tried: set[psutil.Process] = set()
    while fresh := set(find()) - tried:
        for process in fresh:
            with suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(fresh, timeout=LEAVING_SECONDS)
        tried |= fresh


async def open_reader(pipe) -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
    return reader


async def split_lines(reader: asyncio.StreamReader, longest: int | None = None) -> AsyncIterator[str]:
    """Lines, the last one also without its newline; of each at most `longest` bytes. `readline` refuses long ones."""
    rest = b""
    while chunk := await reader.read(2**16):
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line[:longest].decode(errors="replace")
        rest = rest[:longest]
    if rest:
        yield rest.decode(errors="replace")
