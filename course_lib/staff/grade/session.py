"""One call of `course grade`: find submissions, grade what has no result yet, write marks, feedback and a summary.

Needs bubblewrap, Linux and the frameworks. Stopped at any moment, the same call goes on where it was.
"""

import argparse
import dataclasses
import hashlib
import json
import os
import secrets
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from course_lib import devices
from course_lib.errors import CourseError
from course_lib.staff.grade import (
    exports,
    feedback,
    grade_slurm,
    marking,
    results,
    results_csv,
    sandbox,
    sandbox_pool,
    submissions,
    summary,
)
from course_lib.staff.grade.html_page import counted
from course_lib.staff.grade.limits import Limits
from course_lib.staff.grade.results import Result
from course_lib.staff.grade.submissions import Submission

REPLICAS = 4  # of the exercises; known mistakes are tried on as many, outside the sandbox
SECRET_BYTES = 32
MARKS_DEPEND_ON = (
    "exercises/*.py",
    "staff/grade/sandbox_side/*.py",
    "staff/grade/marking.py",
    "staff/grade/sandbox.py",
)


def grade(arguments: argparse.Namespace) -> int:
    """Do what the arguments of command.py ask for; return the exit code."""
    if arguments.slurm:
        return _through_slurm(arguments)
    enclosed = not arguments.run_submissions_as_me
    sandbox.require(enclosed)
    out, limits = arguments.out, _limits(arguments)
    _require_beside(out, arguments.path)
    stored = _folder(out / "submissions")
    secret = _secret(arguments)
    graded_by = _graded_by(secret, limits)
    found = submissions.find(arguments.path)
    mine = _share(found, arguments.share)
    done = {one.name: result for one in mine if (result := _known(stored, one, graded_by))}
    known = "all" if len(done) == len(mine) else len(done)
    _say(
        arguments,
        f"{counted(len(mine), 'submission')} of {counted(len({one.learner for one in mine}), 'learner')}; {known} graded already",
    )
    try:
        for one, result, left in _graded(
            [one for one in mine if one.name not in done], secret, limits, graded_by, arguments.jobs, enclosed
        ):
            results.write(stored, one.name, result)
            done[one.name] = result
            _say(arguments, f"[{len(done)}/{len(mine)}] {_line(result)}{left}")
    except KeyboardInterrupt:
        print(
            f"course grade: stopped; {len(done)} of {len(mine)} have their result, and the same command goes on",
            file=sys.stderr,
        )
        return 130
    if arguments.share is None:
        _report(out, [done[one.name] for one in mine], arguments)
    return 0


def _graded(
    waiting: list[Submission], secret: bytes, limits: Limits, graded_by: str, desks: int, enclosed: bool
) -> Iterator[tuple[Submission, Result, str]]:
    """Each submission with its result as it is done, and the time left in words."""
    if not waiting:
        return
    devices.simulate(REPLICAS)
    waiting = sorted(waiting, key=lambda one: sandbox_pool.backend_of(one.exercise))  # a sandbox has one backend
    work = [(sandbox_pool.backend_of(one.exercise), marking.grading(one, secret, limits, graded_by)) for one in waiting]
    began = time.monotonic()
    for count, (number, result) in enumerate(sandbox_pool.grade_all(work, desks, enclosed), 1):
        seconds = (time.monotonic() - began) / count * (len(waiting) - count)
        yield waiting[number], result, f"; about {max(1, round(seconds / 60))} min left" if count < len(waiting) else ""


def _report(out: Path, graded: list[Result], arguments: argparse.Namespace) -> None:
    results_csv.write(out, graded)
    summary.write(out, graded)
    feedback.write(out, graded)
    for form in arguments.export:
        exports.write(out, form, graded)
    for result in graded:
        if result.problem:
            named = result.problem if result.file in result.problem else f"{result.file}: {result.problem}"
            _say(arguments, f"not graded: {named}")
    forms = "".join(f", for {form} in {out / form}" for form in arguments.export)
    _say(
        arguments,
        f"marks in {out / 'results.csv'}{forms}, feedback in {out / 'feedback'}, figures in {out / 'summary.html'}",
    )
    if arguments.json:
        print(json.dumps(summary.figures(graded), indent=2))


def _through_slurm(arguments: argparse.Namespace) -> int:
    out = _folder(arguments.out).resolve()
    _secret(arguments)  # before any task could make one of its own
    array, merge = grade_slurm.write(
        out, _call(arguments, out), arguments.slurm, arguments.jobs, arguments.memory_gib, arguments.sbatch
    )
    first, second = grade_slurm.submit(array, merge, wait=arguments.wait)
    print(f"Slurm's jobs {first}, an array of {arguments.slurm}, and {second}, the merge; marks come into {out}")
    return 0


def _call(arguments: argparse.Namespace, out: Path) -> list[str]:
    """This very call as a task makes it: full paths, and nothing of Slurm."""
    call = [*(str(path.resolve()) for path in arguments.path), "--out", str(out), "--jobs", str(arguments.jobs)]
    call += ["--secret", str((arguments.secret or out / "secret").resolve())]
    call += [part for form in arguments.export for part in ("--export", form)]
    for name in ("cell_seconds", "seconds", "memory_gib"):
        call += [f"--{name.replace('_', '-')}", f"{getattr(arguments, name):g}"]
    return [*call, *(["--run-submissions-as-me"] if arguments.run_submissions_as_me else [])]


def _known(stored: Path, one: Submission, graded_by: str) -> Result | None:
    """The result that an earlier call left, if it graded this very notebook and would do the same today."""
    result = results.read(stored, one.name)
    fresh = result and (result.sha256, result.graded_by) == (hashlib.sha256(one.content).hexdigest(), graded_by)
    same = fresh and (result.file, result.learner, result.notes[: len(one.notes)]) == (one.file, one.learner, one.notes)
    return result if same else None


def _graded_by(secret: bytes, limits: Limits) -> str:
    """A digest of all that a mark depends on beside the notebook: secret, limits, questions, versions."""
    told = hashlib.sha256(secret + json.dumps(dataclasses.asdict(limits), sort_keys=True).encode())
    for place in MARKS_DEPEND_ON:
        for path in sorted((sandbox.PACKAGE / place).parent.rglob(Path(place).name)):
            told.update(path.read_bytes())
    told.update(json.dumps(devices.machine().versions, sort_keys=True).encode())
    return told.hexdigest()


def _require_beside(out: Path, paths: list[Path]) -> None:
    for path in paths:
        if path.is_dir() and out.resolve().is_relative_to(path.resolve()):
            raise CourseError(f"--out {out} lies in the submissions' folder {path}: name a folder beside it")


def _secret(arguments: argparse.Namespace) -> bytes:
    """The course's secret: the named file, which must be there, or the one in the folder, made for its owner alone."""
    file = arguments.secret or arguments.out / "secret"
    if arguments.secret and not file.exists():
        raise CourseError(
            f"there is no file {file}: write a secret of {SECRET_BYTES // 2} bytes or more there, or leave --secret out"
        )
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        pass
    except OSError as error:
        raise CourseError(f"the secret {file} cannot be written: {error.strerror}") from None
    else:
        with os.fdopen(descriptor, "w") as made:
            made.write(secrets.token_hex(SECRET_BYTES) + "\n")
    try:
        secret = file.read_bytes().strip()
    except OSError as error:
        raise CourseError(f"the secret {file} cannot be read: {error.strerror}") from None
    if len(secret) < SECRET_BYTES // 2:
        raise CourseError(
            f"the secret {file} has {len(secret)} bytes, and {SECRET_BYTES // 2} is the least; remove it to have one made"
        )
    return secret


def _share(found: list[Submission], share: tuple[int, int] | None) -> list[Submission]:
    """What task K of N grades: by the name's digest, so that each task finds its part alone."""
    if share is None:
        return found
    mine, shares = share
    return [one for one in found if int(hashlib.sha256(one.name.encode()).hexdigest(), 16) % shares == mine]


def _line(result: Result) -> str:
    marks = f"{result.points} of {result.of}" if not result.problem else "not graded"
    return f"{result.learner}, {result.exercise or result.file}: {marks}"


def _limits(arguments: argparse.Namespace) -> Limits:
    return Limits(cell_seconds=arguments.cell_seconds, seconds=arguments.seconds, memory_gib=arguments.memory_gib)


def _folder(path: Path) -> Path:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CourseError(f"the folder {path} cannot be made: {error.strerror}; name another one with --out") from None
    return path


def _say(arguments: argparse.Namespace, line: str) -> None:
    print(line, file=sys.stderr if arguments.json else sys.stdout, flush=True)
