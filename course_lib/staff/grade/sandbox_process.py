"""One warmed sandbox, seen from outside: hand it a job, get what the submission told. Needs bubblewrap, unless open.

Everything that comes back is bounded in size and time, and taken for hostile.
"""

import contextlib
import json
import os
import subprocess
import tempfile
import time
from dataclasses import dataclass, field

from course_lib.staff.grade import sandbox

WARM_SECONDS = 300  # for the imports, on a busy machine
SLACK_SECONDS = 60  # beyond a job's own limit, which the sandbox keeps itself
LONGEST_LINE = 80 * 2**20


class BoxFailed(Exception):
    """The sandbox itself ended or fell silent; the next job needs another one."""


@dataclass
class Told:
    """What one run of a submission told.

    records  in order, each a dict of the runner's: see grade.inside.running
    ending   "limit" that was passed or None, "last" that had begun, "output", and how it ended: "exit", "memory", "failed"
    """

    records: list[dict] = field(default_factory=list)
    ending: dict = field(default_factory=dict)


class Box:
    """A warmed sandbox for one backend; it grades one submission at a time. Close it.

    backend   "tensorflow" or "jax"
    enclosed  False runs the code as this user, with nothing in between
    """

    def __init__(self, backend: str, enclosed: bool = True) -> None:
        self.backend = backend
        self._errors = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            sandbox.command(backend, enclosed),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=sandbox.environment(backend),
            start_new_session=True,
            cwd="/",
        )
        self._rest = b""
        os.set_blocking(self._process.stdout.fileno(), False)
        self._warm = False

    def fileno(self) -> int:
        """Readable when the box has something to tell."""
        return self._process.stdout.fileno()

    def start(self, job: dict) -> None:
        """Hand over one job, as grade.inside takes it; a box that has ended says so at the next take."""
        self.told = Told()
        self._deadline = time.monotonic() + job["seconds"] + SLACK_SECONDS + WARM_SECONDS * (not self._warm)
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(job).encode() + b"\n")
            self._process.stdin.flush()

    @property
    def left_seconds(self) -> float:
        """Until the box counts as silent."""
        return max(0.0, self._deadline - time.monotonic())

    def take(self) -> bool:
        """Take what is there to read; whether the job has ended. Raises BoxFailed."""
        try:
            piece = os.read(self.fileno(), 2**20)
        except BlockingIOError:
            piece = None
        if piece == b"" or self.left_seconds == 0 or len(self._rest) > LONGEST_LINE:
            raise BoxFailed(self._why())
        *lines, self._rest = (self._rest + (piece or b"")).split(b"\n")
        return any([self._line(line) for line in lines])

    def _line(self, line: bytes) -> bool:
        kind, _, text = line.partition(b" ")
        if kind == b"ready":
            self._warm = True
        elif kind == b"R":
            record = _object(text)
            if record is not None:
                self.told.records.append(record)
        elif kind == b"E":
            self.told.ending = _object(text) or {}
            if failed := self.told.ending.get("failed"):
                raise BoxFailed(str(failed))
        return kind == b"E"

    def _why(self) -> str:
        """The last line that the sandbox said before it ended."""
        self._errors.seek(max(0, self._errors.seek(0, os.SEEK_END) - 2000))
        said = self._errors.read().decode("utf-8", "replace").strip().splitlines()
        return said[-1][:300] if said else "it fell silent"

    def close(self) -> None:
        """End the sandbox and all that is in it."""
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()
        self._errors.close()


def _object(text: bytes) -> dict | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
