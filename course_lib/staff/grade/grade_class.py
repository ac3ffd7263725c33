"""`course grade`: find submissions, grade those without a result, write marks, feedback and a summary.

Needs bubblewrap, Linux and the frameworks. Stopped at any moment, the same call goes on where it was.
"""

import argparse
import dataclasses
import hashlib
import json
import os
import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from pathlib import Path

from course_lib import devices
from course_lib.errors import CourseError
from course_lib.lessons import LESSONS
from course_lib.staff.grade import exports, feedback, grade_slurm, results, sandbox, submissions, summary
from course_lib.staff.grade.grade_one import judge_submission, run_submission
from course_lib.staff.grade.results import Result, counted
from course_lib.staff.grade.sandbox import Limits, Sandbox, SandboxFailed, SandboxRun
from course_lib.staff.grade.submissions import Submission

REPLICAS = 4  # of the exercises; known mistakes are tried on as many, outside the sandbox
SECRET_BYTES = 32
TRIES = 2  # of one run in a sandbox that fails
MARKS_DEPEND_ON = (
    "exercises/*.py",
    "staff/grade/sandbox_side/*.py",
    "staff/grade/grade_one.py",
    "staff/grade/sandbox.py",
)


def grade_class(arguments: argparse.Namespace) -> int:
    """Do what the arguments of grade_command.py ask for; return the exit code."""
    if arguments.slurm:
        return _through_slurm(arguments)
    enclosed = not arguments.run_submissions_as_me
    sandbox.require(enclosed)
    out, limits = arguments.out, Limits(arguments.cell_seconds, arguments.seconds, arguments.memory_gib)
    _require_beside(out, arguments.path)
    stored = _folder(out / "submissions")
    secret = _secret(arguments)
    graded_by = _graded_by(secret, limits)
    mine = _share(submissions.find(arguments.path), arguments.share)
    done = {one.name: result for one in mine if (result := _known(stored, one, graded_by))}
    learners = counted(len({one.learner for one in mine}), "learner")
    known = "all" if len(done) == len(mine) else len(done)
    _say(arguments, f"{counted(len(mine), 'submission')} of {learners}; {known} graded already")
    waiting = [one for one in mine if one.name not in done]
    began = time.monotonic()
    try:
        graded = grade_all(waiting, secret, limits, graded_by, arguments.jobs, enclosed)
        for count, (one, result) in enumerate(graded, 1):
            results.write(stored, one.name, result)
            done[one.name] = result
            seconds = (time.monotonic() - began) / count * (len(waiting) - count)
            left = f"; about {max(1, round(seconds / 60))} min left" if count < len(waiting) else ""
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


def grade_all(
    waiting: list[Submission], secret: bytes, limits: Limits, graded_by: str, jobs: int, enclosed: bool
) -> Iterator[tuple[Submission, Result]]:
    """Grade submissions: threads run them in sandboxes, this thread judges, since judging may run frameworks.

    jobs      submissions that run at a time
    enclosed  False runs learner code as this user
    Yields    each submission with its result, as it is done; one that cannot be graded has a problem, and no mark
              that would keep the same command from trying it again
    Raises    CourseError when no sandbox can be made; every sandbox ends with the generator
    """
    if not waiting:
        return
    devices.simulate(REPLICAS)
    with SandboxPool(enclosed) as pool, ThreadPoolExecutor(jobs) as threads:
        try:
            futures = {
                threads.submit(run_submission, one, partial(pool.run, backend_of(one.exercise)), secret, limits): one
                for one in sorted(waiting, key=lambda one: backend_of(one.exercise))  # a sandbox has one backend
            }
            for future in as_completed(futures):
                one = futures.pop(future)
                yield one, _result(one, future.result, secret, limits, graded_by)
        finally:
            pool.kill()
            threads.shutdown(cancel_futures=True)


def _result(one: Submission, runs: Callable[[], list], secret: bytes, limits: Limits, graded_by: str) -> Result:
    """What a submission did to its sandbox, or to its judge, is its own result and nobody else's."""
    try:
        return judge_submission(one, runs(), secret, limits, graded_by)
    except CourseError:
        raise
    except SandboxFailed as error:
        problem = f"it could not be graded: its sandbox failed {TRIES} times ({error})"
    except Exception as error:
        problem = f"it could not be graded: what came back cannot be judged ({type(error).__name__}: {error})"[:300]
    return judge_submission(dataclasses.replace(one, problem=problem), [], secret, limits, graded_by="")


def backend_of(exercise: str | None) -> str:
    """Keras' backend for an exercise, which its set-up cell picks too."""
    return LESSONS[exercise].framework if exercise else "tensorflow"


class SandboxPool:
    """Warmed sandboxes, one for each thread that runs jobs: a sandbox pays TensorFlow's import once. Close it.

    enclosed  False runs learner code as this user
    """

    def __init__(self, enclosed: bool) -> None:
        self._enclosed, self._sandboxes = enclosed, {}  # by thread
        self._is_over, self._lock = False, threading.Lock()

    def __enter__(self) -> "SandboxPool":
        return self

    def __exit__(self, *_: object) -> None:
        for one in self._sandboxes.values():
            one.close()

    def run(self, backend: str, job: dict) -> SandboxRun:
        """Run one job; a sandbox that fails is replaced, and the job runs again.

        Raises  SandboxFailed after TRIES; CourseError when none of them was ready before it failed
        """
        was_ready = False
        for _ in range(TRIES):
            mine = self._mine(backend)
            try:
                return mine.run(job)
            except SandboxFailed as error:
                failed, was_ready = error, was_ready or mine.is_ready
                self._drop()
        if was_ready:
            raise failed
        raise CourseError(f"the sandbox failed {TRIES} times in a row before it was ready: {failed}")

    def kill(self) -> None:
        """End every sandbox, and start no other one."""
        with self._lock:
            self._is_over = True
            for one in self._sandboxes.values():
                one.kill()

    def _mine(self, backend: str) -> Sandbox:
        thread = threading.get_ident()
        if thread in self._sandboxes and self._sandboxes[thread].backend != backend:
            self._drop()
        with self._lock:
            if self._is_over:
                raise SandboxFailed("the grading was stopped")
            if thread not in self._sandboxes:
                self._sandboxes[thread] = Sandbox(backend, self._enclosed)
            return self._sandboxes[thread]

    def _drop(self) -> None:
        with self._lock:
            one = self._sandboxes.pop(threading.get_ident(), None)
        if one:
            one.close()


def _report(out: Path, graded: list[Result], arguments: argparse.Namespace) -> None:
    results.write_csv(out, graded)
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
    _secret(arguments)  # before any task could make its own
    call = grade_slurm.call_of(arguments, out)
    scripts = grade_slurm.write(out, call, arguments.slurm, arguments.jobs, arguments.memory_gib, arguments.sbatch)
    first, second = grade_slurm.submit(*scripts, wait=arguments.wait)
    print(f"Slurm's jobs {first}, an array of {arguments.slurm}, and {second}, the merge; marks come into {out}")
    return 0


def _known(stored: Path, one: Submission, graded_by: str) -> Result | None:
    """The result that an earlier call left, if it graded this very notebook and would do the same today."""
    result = results.read(stored, one.name)
    fresh = result and (result.sha256, result.graded_by) == (hashlib.sha256(one.content).hexdigest(), graded_by)
    same = fresh and (result.file, result.learner, result.notes[: len(one.notes)]) == (one.file, one.learner, one.notes)
    return result if same else None


def _graded_by(secret: bytes, limits: Limits) -> str:
    """A digest of all that a mark depends on beside the notebook: secret, limits, questions, versions."""
    digest = hashlib.sha256(secret + json.dumps(dataclasses.asdict(limits), sort_keys=True).encode())
    for place in MARKS_DEPEND_ON:
        for path in sorted((sandbox.PACKAGE / place).parent.rglob(Path(place).name)):
            digest.update(path.read_bytes())
    digest.update(json.dumps(devices.machine().versions, sort_keys=True).encode())
    return digest.hexdigest()


def _require_beside(out: Path, paths: list[Path]) -> None:
    for path in paths:
        if path.is_dir() and out.resolve().is_relative_to(path.resolve()):
            raise CourseError(f"--out {out} lies in the submissions' folder {path}: name a folder beside it")


def _secret(arguments: argparse.Namespace) -> bytes:
    """The course's secret: the named file, which must be there, or the one in the folder, made for its owner alone."""
    file = arguments.secret or arguments.out / "secret"
    if arguments.secret and not file.exists():
        raise CourseError(f"there is no file {file}: write at least {SECRET_BYTES // 2} bytes there, or omit --secret")
    try:
        with open(file, "x", opener=partial(os.open, mode=0o600)) as made:
            made.write(secrets.token_hex(SECRET_BYTES) + "\n")
    except FileExistsError:
        pass
    except OSError as error:
        raise CourseError(f"the secret {file} cannot be written: {error.strerror}") from None
    try:
        secret = file.read_bytes().strip()
    except OSError as error:
        raise CourseError(f"the secret {file} cannot be read: {error.strerror}") from None
    if len(secret) < SECRET_BYTES // 2:
        raise CourseError(
            f"the secret {file} has {len(secret)} bytes, and {SECRET_BYTES // 2} is the least: "
            + ("name another with --secret" if arguments.secret else "remove it to have one made")
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


def _folder(path: Path) -> Path:
    """Raises CourseError where it cannot be made."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CourseError(f"the folder {path} cannot be made: {error.strerror}; name another one with --out") from None
    return path


def _say(arguments: argparse.Namespace, line: str) -> None:
    print(line, file=sys.stderr if arguments.json else sys.stdout, flush=True)
