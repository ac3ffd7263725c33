"""The sandbox's one lasting process: warmed by its imports, without threads, it forks a child per submission.

`python -m course_lib.staff.grade.sandbox_side BACKEND enclosed|open`; jobs come in as lines of JSON, what comes from
each child goes out as lines: "R " and a record, then "E " and how it ended. Only this process times a submission.
"""

import gc
import importlib
import json
import os
import pkgutil
import re
import secrets
import selectors
import signal
import socket
import sys
import tempfile
import time
from pathlib import Path

from course_lib.staff.grade.sandbox_side import exercise_stub, namespaces
from course_lib.staff.grade.sandbox_side.channel import KEY_BYTES, Unsealed

PACKAGE = str(Path(__file__).resolve().parents[3])
BEGINS = re.compile(rb'\{"begins": (?:(\d{1,6})|"(\w{1,40})")\}', re.ASCII)  # a cell's place, or a question's name
OUTPUT_KEPT_BYTES = 4000
RECORDS_BYTES = 64 * 2**20
GRACE_SECONDS = 10  # for a cell to take its own time limit in, before it is killed
WATCH_SECONDS = 0.1  # between two looks at memory


def main() -> None:
    backend, enclosed = sys.argv[1], sys.argv[2] == "enclosed"
    jobs, out = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    gc.disable()  # imports make much, and free little
    _warm(backend)
    from course_lib.staff.grade.sandbox_side.guard import take_snapshot
    from course_lib.staff.grade.sandbox_side.running import run

    shell, guard = _shell(), list(take_snapshot())
    gc.collect()
    gc.freeze()  # a collection in a child would touch, and so copy, all that the imports made
    gc.enable()
    _say(out, "ready", {})
    for line in jobs:
        _serve(json.loads(line), out, lambda job, records: run(job, records, guard, shell), enclosed)


def _warm(backend: str) -> None:
    """Import what submissions import, once, and start nothing: a fork keeps one thread."""
    sys.modules["course_lib.exercises.check"] = exercise_stub
    names = ["numpy", "keras", "course_lib.data", "course_lib.models", "course_lib.show", "course_lib.training"]
    for name in [backend, *names, "course_lib.cluster", "course_lib.exercises.probes"]:
        importlib.import_module(name)
    probes = sys.modules["course_lib.exercises.probes"]
    for module in pkgutil.iter_modules(probes.__path__, f"{probes.__name__}."):  # so that the guard knows them
        importlib.import_module(module.name)
    sys.modules[f"{probes.__name__}.state"].trust_loaded_classes()


def _shell():
    """An IPython that shows no colours, keeps no history and has no thread."""
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    settings = Config()
    settings.HistoryManager.enabled = False
    settings.InteractiveShell.colors = "NoColor"
    settings.InteractiveShell.xmode = "Minimal"  # one line is enough, and a long traceback takes a tenth of a second
    shell = InteractiveShell.instance(config=settings)
    shell.enable_gui = lambda gui=None: None  # `%matplotlib inline` asks for it, and this shell has none
    return shell


def _serve(job: dict, out, run, enclosed: bool) -> None:
    scratch = None if enclosed else tempfile.TemporaryDirectory(prefix="course-grade-", ignore_cleanup_errors=True)
    records, theirs = socket.socketpair()
    output, their_output = os.pipe()
    status, their_status = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if scratch:
                os.chdir(scratch.name)
            _become_first(job, (theirs.fileno(), their_output, their_status), run, enclosed)
        except BaseException as error:
            os.write(their_status, json.dumps({"failed": f"{type(error).__name__}: {error}"[:500]}).encode() + b"\n")
        finally:
            os._exit(1)
    for end in (their_output, their_status):
        os.close(end)
    theirs.close()
    key = secrets.token_hex(KEY_BYTES // 2).encode()  # made after the fork: no frame that the child has may hold it
    records.sendall(key)
    ending = _follow(job, records, output, child, key, out)
    os.waitpid(child, 0)
    ending |= _status(status)
    records.close()
    for end in (output, status):
        os.close(end)
    if scratch:
        scratch.cleanup()
    _say(out, "E", ending)


def _become_first(job: dict, ends: tuple[int, ...], run, enclosed: bool) -> None:
    """Enclose this process' next child, and wait for it; that one is the first of its world, and all ends with it."""
    records, output, status = ends
    os.setsid()
    if enclosed:
        namespaces.enter_new()
    first = os.fork()
    if first:
        os.waitpid(first, 0)
        if not enclosed:
            os.killpg(0, signal.SIGKILL)  # what it started and left, as far as that stayed in its group
        os._exit(0)
    namespaces.end_with_parent()
    if enclosed:
        namespaces.furnish(int(job["scratch_mib"] * namespaces.MIB), (PACKAGE, sys.prefix, sys.base_prefix))
    namespaces.hide_memory()
    learner = os.fork()
    if learner:
        os.write(status, json.dumps(_watch(learner, job["memory_gib"] if enclosed else None)).encode() + b"\n")
        os._exit(0)
    namespaces.limit(job)
    if enclosed:
        namespaces.give_up_rights()
    _keep_only(records, output)
    run(job, records)
    os._exit(0)


def _keep_only(records: int, output: int) -> None:
    """Leave the learner's code nothing of this program's open files but its output and its records."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    os.closerange(3, records)
    os.closerange(records + 1, 4096)


def _watch(learner: int, memory_gib: float | None) -> dict:
    """Reap what ends until the learner's process does; end everything when it takes too much memory together."""
    signals = {signal.SIGCHLD}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    while True:
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == learner:
                return {"exit": os.waitstatus_to_exitcode(ended[1])}
        if memory_gib and namespaces.own_bytes() > memory_gib * namespaces.GIB:
            return {"memory": True}
        signal.sigtimedwait(signals, WATCH_SECONDS)


def _follow(job: dict, records: socket.socket, output: int, child: int, key: bytes, out) -> dict:
    """Pass genuine records on until the submission's last process is gone; kill it when a limit is passed."""
    began = time.monotonic()
    deadlines = {"in all": began + job["seconds"], "a cell": began + job["seconds"]}
    ending, genuine, tail = {"limit": None, "last": None}, Unsealed(key), b""
    with selectors.DefaultSelector() as waiting:
        for end in (records, output):
            waiting.register(end, selectors.EVENT_READ)
        while waiting.get_map():
            limit, left = ending["limit"], min(deadlines.values()) - time.monotonic()
            if not limit and (left <= 0 or genuine.size > RECORDS_BYTES):
                limit = ending["limit"] = "records" if left > 0 else min(deadlines, key=deadlines.get)
                os.killpg(child, signal.SIGKILL)
            for ready, _ in waiting.select(None if limit else left):
                piece = _read(ready.fd)
                if not piece:
                    waiting.unregister(ready.fileobj)
                elif ready.fd == output:
                    tail = (tail + piece)[-OUTPUT_KEPT_BYTES:]
                elif not limit:
                    for record in genuine.take(piece):
                        _pass_on(record, ending, deadlines, job, out)
    return {**ending, "output": tail.decode("utf-8", "replace")}


def _pass_on(record: bytes, ending: dict, deadlines: dict, job: dict, out) -> None:
    """Pass a record out; one that says what begins starts its time."""
    out.write(b"R " + record + b"\n")
    out.flush()
    if (begun := BEGINS.fullmatch(record)) is not None:
        ending["last"] = int(begun[1]) if begun[1] else begun[2].decode()
        deadlines["a cell"] = time.monotonic() + job["cell_seconds"] + GRACE_SECONDS


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 2**16)
    except ConnectionResetError:  # it ended before it read its key
        return b""


def _status(end: int) -> dict:
    """How it ended, as its parent process reports; nothing when all were killed."""
    with os.fdopen(os.dup(end), "rb") as file:
        return json.loads(file.readline() or b"{}")


def _say(out, kind: str, what: dict) -> None:
    out.write(f"{kind} {json.dumps(what)}\n".encode())
    out.flush()


if __name__ == "__main__":
    main()
