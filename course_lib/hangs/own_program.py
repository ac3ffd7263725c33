"""Watch a program of your own for hangs: one call at its start, on every machine, and one shared folder."""

import atexit
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from course_lib.errors import CourseError
from course_lib.hangs import evidence, recorder, tensorflow_calls
from course_lib.hangs.evidence import Evidence
from course_lib.hangs.hang_report import HangReport
from course_lib.hangs.stillness import Stillness

HUNG = 75  # the exit code; EX_TEMPFAIL of sysexits(3): try again
OTHERS_SECONDS = 3.0  # for the other tasks to write what they look like


def watch(folder: Path, task: str, seconds: float = 60.0, end: bool = False) -> Callable[[], None]:
    """From now on, when this process makes no progress for so long, say so and write FOLDER/hang-report.html.

    Progress is an import, a call of a traced function or a collective of TensorFlow's,
    and `hangs.step(number)`; import TensorFlow before. Every task of the job calls this
    with the same folder, and the report shows them side by side.

    folder   all tasks see it
    task     "worker 0"
    seconds  three times as long while this process computes
    end      also end this process, with exit code 75, so that whatever started it can start it again
    Returns  what to call when the program has done its part and only waits for the others; the end of
             the process calls it, too
    Raises   CourseError when the folder cannot be written
    """
    folder, over = Path(folder), threading.Event()
    try:
        _evidence_path(folder, task).unlink(missing_ok=True)  # of an earlier attempt
        keep_record(folder, task)
    except OSError as error:
        raise CourseError(
            f"records cannot be kept in {folder} ({error.strerror}): give watch a folder that every task can write."
        ) from None

    def done() -> None:
        if not over.is_set():
            over.set()
            _write(folder, task, "returned", None)

    atexit.register(done)
    threading.Thread(target=_follow, args=(folder, task, seconds, end, over), daemon=True).start()
    return done


def keep_record(folder: Path, task: str) -> None:
    """Let others see what this process does while it stands still."""
    recording = recorder.record(folder, task)
    evidence.answer_with_stacks(folder, task)
    if "tensorflow" in sys.modules:
        tensorflow_calls.record_calls(recording)


def _follow(folder: Path, task: str, seconds: float, end: bool, over: threading.Event) -> None:
    still, path = Stillness(seconds), recorder.path_of(folder, task)
    while not over.wait(still.pause):
        notes = recorder.notes(path)
        if not still.hangs(notes, {task: time.process_time()}):
            continue
        _write(folder, task, "running", still.busy[task])
        time.sleep(OTHERS_SECONDS)
        found = HangReport(_all(folder), seconds)
        page = found.write(folder / "hang-report")
        print(f"{task}: {found.summary} {page} shows all tasks.", file=sys.stderr, flush=True)
        if end:
            os._exit(HUNG)
        while recorder.notes(path) == notes and not over.wait(still.pause):  # one report for one hang
            pass


def _evidence_path(folder: Path, task: str) -> Path:
    return folder / "records" / f"{task}.json"


def _write(folder: Path, task: str, state: str, busy: float | None) -> None:
    look = evidence.gather(folder, task, os.getpid(), state, busy)
    path = _evidence_path(folder, task)
    path.with_suffix(".new").write_text(json.dumps(look.as_json()))
    path.with_suffix(".new").replace(path)


def _all(folder: Path) -> tuple[Evidence, ...]:
    """Every task that keeps a record; of one that has written nothing, its record alone."""
    found = []
    for path in sorted(folder.glob("records/*.record")):
        look = evidence.gather(folder, path.stem, None)
        with suppress(OSError, ValueError):
            written = Evidence.from_json(json.loads(_evidence_path(folder, path.stem).read_text()))
            look = written if written.notes == look.notes else look
        found.append(look)
    return tuple(found)
