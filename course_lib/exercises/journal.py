"""The checks of a learner: JSON lines that are only ever appended. Needs nothing.

Each check is one write to a file opened for appending, so several notebooks can record at
once; a torn line costs that check and no other. No version of the course rewrites the
file: lines that this one cannot use, such as those of an exercise that is gone or of a
newer version, stay as they are and count for nothing.
"""

import json
import os
from datetime import UTC, datetime
from pathlib import Path

from course_lib.exercises.verdict import Verdict

FILE = ".progress.jsonl"


def record(file: Path, exercise: str, verdict: Verdict, seed: int) -> None:
    """Append one check to the file. Raises OSError where it cannot be written."""
    event = {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "exercise": exercise,
        "question": verdict.question,
        "right": verdict.right,
        "mistake": verdict.mistake,
        "seed": seed,
    }
    # The newline comes first: a line torn by a crash does not swallow the next one.
    line = ("\n" + json.dumps(event)).encode()
    descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        if os.write(descriptor, line) != len(line):
            raise OSError("the disk is full")
    finally:
        os.close(descriptor)


def events(file: Path) -> list[dict]:
    """The recorded checks, oldest first; none where there is no readable file."""
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    return [event for event in map(_event, lines) if event]


def right_questions(exercise: str, checks: list[dict]) -> set[str]:
    """The questions answered right at least once."""
    return {check["question"] for check in checks if check["exercise"] == exercise and check["right"]}


def _event(line: str) -> dict | None:
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    wanted = {"exercise": str, "question": str, "right": bool}
    whole = isinstance(event, dict) and all(isinstance(event.get(key), kind) for key, kind in wanted.items())
    return event if whole else None
