"""`course grade` as an examiner runs it: real sandboxes, an ordinary user, small classes."""

import csv
import functools
import json
import os
import re
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from installed import need, needs_sandbox
from unprivileged import as_nobody, give_to_nobody

from course_lib import cli
from course_lib.errors import CourseError
from course_lib.staff.grade import sandbox

need("tensorflow")

ROOT = Path(__file__).parents[1]
SOLVED, BLANK = (ROOT / folder / "00_start_here.ipynb" for folder in ("solutions", "exercises"))
Q1 = """
def shard_sizes(global_batch, replicas):
    size, left_over = divmod(global_batch, replicas)
    return [size + (replica < left_over) for replica in range(replicas)]
"""
Q1_WRONG = "def shard_sizes(global_batch, replicas):\n    return [global_batch // replicas] * replicas"
Q2 = """
def steps_per_epoch(examples, global_batch, drop_remainder):
    return examples // global_batch if drop_remainder else -(-examples // global_batch)
"""


def notebook(*sources: str) -> str:
    cells = [
        {"cell_type": "code", "metadata": {}, "source": source, "outputs": [], "execution_count": None}
        for source in sources
    ]
    return json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 4})


def write_class(folder: Path, submissions: dict[str, str]) -> Path:
    """A folder of exercise 00's notebooks, one for each learner."""
    for learner, text in submissions.items():
        (folder / learner).mkdir(parents=True)
        (folder / learner / "00_start_here.ipynb").write_text(text)
    return give_to_nobody(folder)


def command(folder: Path, *arguments: object) -> list[str]:
    """In a folder of the user's own, from where relative paths count."""
    give_to_nobody(folder)
    return as_nobody([sys.executable, "-m", "course_lib.cli", "grade", *map(str, arguments)], folder)


def course_grade(folder: Path, *arguments: object) -> subprocess.CompletedProcess:
    return subprocess.run(command(folder, *arguments), cwd=folder, capture_output=True, text=True, timeout=600)


def rows(out: Path) -> dict[str, dict[str, str]]:
    return {row["learner"]: row for row in csv.DictReader((out / "results.csv").read_text("utf-8-sig").splitlines())}


def files(out: Path) -> dict[str, bytes]:
    return {str(path.relative_to(out)): path.read_bytes() for path in sorted(out.rglob("*")) if path.is_file()}


@pytest.fixture(scope="module")
def graded(tmp_path_factory) -> tuple[Path, subprocess.CompletedProcess]:
    folder = tmp_path_factory.mktemp("class")
    made = {"ana": SOLVED.read_text(), "ben": BLANK.read_text(), "cleo": notebook(Q1_WRONG, Q2), "dan": "{not json"}
    write_class(folder / "handed in", made)
    forms = [part for form in ("canvas", "moodle", "gradescope") for part in ("--export", form)]
    return folder, course_grade(folder, "handed in", "--out", "marks", "--jobs", 2, *forms)


@needs_sandbox
def test_marks_feedback_and_figures_are_there(graded):
    folder, done = graded
    assert done.returncode == 0 and done.stderr == "", done.stderr
    marks = rows(folder / "marks")
    assert {learner: row["points"] for learner, row in marks.items()} == {
        "ana": "4",
        "ben": "0",
        "cleo": "1",
        "dan": "",
    }
    assert marks["cleo"]["mistakes"] == "q1: remainder dropped" and "not JSON" in marks["dan"]["problem"]
    assert {path.stem for path in (folder / "marks" / "feedback").iterdir()} == {"ana", "ben", "cleo", "dan"}
    marks_alone = {stat.S_IMODE(path.stat().st_mode) for path in (folder / "marks").rglob("*") if path.is_file()}
    folders = {stat.S_IMODE(path.stat().st_mode) for path in (folder / "marks", *(folder / "marks").rglob("*/"))}
    assert marks_alone == {0o600} and 0o700 in folders
    linked = re.findall(r'href="(feedback/[^"]+)"', (folder / "marks" / "summary.html").read_text(encoding="utf-8"))
    assert {*linked} == {f"feedback/{learner}.html" for learner in marks}
    figures = json.loads((folder / "marks" / "summary.json").read_text())
    assert figures["submissions"] == 4
    assert {"canvas", "moodle", "gradescope"} <= {path.name for path in (folder / "marks").iterdir()}
    assert (
        "4 submissions of 4 learners; 0 graded already" in done.stdout and "for canvas in marks/canvas" in done.stdout
    )
    assert "not graded: dan/00_start_here.ipynb is not JSON" in done.stdout


@needs_sandbox
def test_the_same_call_grades_nothing_twice(graded):
    folder, _ = graded
    before = files(folder / "marks")
    done = course_grade(folder, "handed in", "--out", "marks", "--export", "canvas", "--json")
    assert "4 learners; all graded already" in done.stderr and "[1/" not in done.stderr
    assert json.loads(done.stdout)["submissions"] == 4
    assert files(folder / "marks") == before


@needs_sandbox
def test_another_secret_grades_again_with_other_inputs_and_the_same_marks(graded):
    folder, _ = graded
    (folder / "another").write_text("0123456789abcdef")
    again = course_grade(folder, "handed in/ana", "handed in/cleo", "--out", "again", "--secret", "another")
    assert again.returncode == 0, again.stderr
    seeds = [
        {json.dumps(json.loads(path.read_text())["seeds"]) for path in (folder / out / "submissions").glob("*.json")}
        for out in ("marks", "again")
    ]
    assert not (seeds[0] - {"null"}) & seeds[1]
    assert sorted(row["points"] for row in rows(folder / "again").values()) == ["1", "4"]


LEAVES = """
import atexit, builtins, os, random, signal, sys, threading
import numpy as np
os.environ["LEFT"] = builtins.left = sys.left = np.left = "here"
np.random.seed(1), random.seed(1), signal.signal(signal.SIGUSR1, signal.SIG_IGN), sys.path.insert(0, "/left")
for folder in ("/tmp", "/dev/shm", "/scratch"):
    open(f"{folder}/left", "w").close()
threading.Thread(target=threading.Event().wait, daemon=True).start()
if os.fork() == 0:
    os.setsid()
    threading.Event().wait()
"""
FINDS = """
import builtins, os, random, signal, sys, threading
import numpy as np
found = [name for name, there in {
    "environment": "LEFT" in os.environ, "builtins": hasattr(builtins, "left"), "sys": hasattr(sys, "left"),
    "numpy": hasattr(np, "left"), "path": "/left" in sys.path, "threads": threading.active_count() > 1,
    "signal": signal.getsignal(signal.SIGUSR1) == signal.SIG_IGN, "draws": np.random.rand() == 0.417022004702574,
    "processes": len([name for name in os.listdir("/proc") if name.isdigit()]) > 2,
    "files": [folder for folder in ("/tmp", "/dev/shm", "/scratch") if os.path.exists(f"{folder}/left")],
}.items() if there]
if found:
    raise SystemError(f"left: {found}")
"""


@needs_sandbox
def test_nothing_passes_from_one_submission_to_the_next(tmp_path):
    """Through one sandbox, in this order; the finder answers only if it found nothing."""
    write_class(tmp_path / "in", {"a": notebook(LEAVES, Q1), "b": notebook(FINDS + Q1)})
    done = course_grade(tmp_path, "in", "--out", "out", "--jobs", 1)
    assert {learner: row["q1"] for learner, row in rows(tmp_path / "out").items()} == {"a": "1", "b": "1"}, (
        done.stdout + "".join(path.read_text() for path in (tmp_path / "out" / "submissions").glob("b*"))
    )


def ended_after(results: int, folder: Path, *arguments: object, by: signal.Signals = signal.SIGKILL) -> tuple[int, str]:
    """Start the command, send it alone a signal when it has printed so many results; its exit code and complaints.

    Everything that it had started must end with it.
    """
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    # A shell ignores Ctrl-C for what it starts in the background, tests among it, and their children inherit that.
    heed = functools.partial(signal.signal, by, signal.SIG_DFL) if by == signal.SIGINT else None
    with subprocess.Popen(command(folder, *arguments), cwd=folder, preexec_fn=heed, **pipes) as running:
        lines: Iterator[str] = (line for line in running.stdout if line.startswith("["))
        for _ in range(results):
            next(lines)
        started = psutil.Process(running.pid).children(recursive=True)
        running.send_signal(by)
        _, complaints = running.communicate()
    assert started and not psutil.wait_procs(started, timeout=60)[1]
    return running.returncode, complaints


@needs_sandbox
def test_killed_three_times_and_resumed_it_ends_as_if_undisturbed(tmp_path):
    texts = {
        f"learner {number:02}": notebook(f"# {number}", Q1 if number % 3 else Q1_WRONG, Q2) for number in range(24)
    }
    write_class(tmp_path / "in", texts)
    (tmp_path / "secret").write_text("fedcba9876543210")
    for count in (3, 4, 5):
        assert ended_after(count, tmp_path, "in", "--out", "killed", "--secret", "secret")[0] == -signal.SIGKILL
    whole, resumed = (
        course_grade(tmp_path, "in", "--out", out, "--secret", "secret", "--jobs", jobs)
        for out, jobs in (("whole", 2), ("killed", 1))
    )
    assert whole.returncode == resumed.returncode == 0
    known = int(resumed.stdout.split("; ")[1].split()[0])
    assert 12 <= known < 24  # what was in hand at a kill may have been stored before it
    assert files(tmp_path / "killed") == files(tmp_path / "whole")
    assert sum(int(row["points"]) for row in rows(tmp_path / "whole").values()) == 16 * 2 + 8


@needs_sandbox
def test_stopped_by_ctrl_c_it_says_what_is_kept(tmp_path):
    never_ends = notebook("import threading; threading.Event().wait()", Q1)
    write_class(tmp_path / "in", {"ana": notebook(Q1), "ben": notebook("# ben", Q1), "cem": never_ends})
    code, complaints = ended_after(2, tmp_path, "in", "--out", "out", by=signal.SIGINT)
    assert (code, complaints) == (
        130,
        "course grade: stopped; 2 of 3 have their result, and the same command goes on\n",
    )
    assert len(list((tmp_path / "out" / "submissions").glob("*.json"))) == 2


def test_without_a_sandbox_the_marks_are_the_same(tmp_path):
    write_class(tmp_path / "in", {"ana": notebook(Q1, Q2), "ben": notebook(Q1_WRONG, "import os; os._exit(1)", Q2)})
    done = course_grade(tmp_path, "in", "--out", "out", "--run-submissions-as-me")
    assert done.returncode == 0, done.stderr
    assert {learner: (row["q1"], row["q2"]) for learner, row in rows(tmp_path / "out").items()} == {
        "ana": ("1", "1"),
        "ben": ("0", "1"),
    }


def test_root_and_a_missing_sandbox_are_one_line(monkeypatch, tmp_path):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    for enclosed in (True, False):
        with pytest.raises(CourseError, match="must not run as root.*as an ordinary user"):
            sandbox.require(enclosed)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CourseError, match="apt-get install bubblewrap.*--run-submissions-as-me"):
        sandbox.require()
    (tmp_path / "bwrap").write_text("#!/bin/sh\necho bwrap: no permissions >&2\nexit 1\n")
    (tmp_path / "bwrap").chmod(0o755)
    with pytest.raises(CourseError, match=r"cannot make a sandbox here \(bwrap: no permissions\)"):
        sandbox.require()


@needs_sandbox
@pytest.mark.parametrize("most", [0, 1])  # none for bubblewrap, or one, and none within it
def test_a_kernel_that_allows_too_few_namespaces_is_one_line_with_the_setting(tmp_path, most):
    write_class(tmp_path / "in", {"ana": notebook(Q1)})
    few = f'echo {most} > /proc/sys/user/max_user_namespaces; exec setpriv --ambient-caps=-all --inh-caps=-all "$@"'
    here = ["unshare", "--user", "--map-current-user", "--keep-caps", "sh", "-c", few, "sh"]
    grade = [sys.executable, "-m", "course_lib.cli", "grade", "in", "--out", "out"]
    give_to_nobody(tmp_path)
    done = subprocess.run(
        as_nobody([*here, *grade], tmp_path), cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2 and not done.stdout and len(done.stderr.splitlines()) == 1
    assert (
        "cannot make a sandbox here" in done.stderr and "`sudo sysctl -w user.max_user_namespaces=1000`" in done.stderr
    )


def test_the_sandbox_holds_no_reference_and_no_home():
    words = sandbox.command("tensorflow", enclosed=True)
    hidden = {words[place + 1] for place, word in enumerate(words) if word == "--tmpfs"}
    assert {str(sandbox.PACKAGE / "exercises" / "judges"), str(sandbox.PACKAGE / "staff")} <= hidden
    shown = [words[place + 1] for place, word in enumerate(words) if word.startswith("--ro-bind")]
    assert str(sandbox.PACKAGE) in shown and not {str(Path.home()), "/", "/home", str(ROOT)} & {*shown}
    assert "--bind" not in words
    assert [words[at + 1] for at, word in enumerate(words) if word.startswith("--dev-bind")] == ["/dev/null"]


@pytest.mark.parametrize(
    "line, says",
    [
        ("x --out o --jobs 0", "a whole number"),
        ("x --out o --share 4/4", "K from 0 to N - 1"),
        ("x", "--out"),
        ("x --out o --seconds -1", "a positive number"),
        ("x --out o --export excel", "invalid choice"),
        ("--out o", "path"),
        ("x --out o --cell-seconds nan", "a positive number"),
    ],
)
def test_a_mistake_in_the_call_is_one_line(capsys, line, says):
    with pytest.raises(SystemExit) as left:
        cli.main(["grade", *line.split()])
    assert left.value.code == 2 and says in capsys.readouterr().err


@needs_sandbox
@pytest.mark.parametrize(
    "arguments, says",
    [
        (["nowhere", "--out", "out"], "nowhere"),
        (["in/a/00_start_here.ipynb", "--out", "in/a/00_start_here.ipynb/out"], "cannot be made"),
        (["in", "--out", "in/marks"], "lies in the submissions' folder in: name a folder beside it"),
        (["in", "--out", "out", "--secret", "short"], "has 3 bytes"),
        (["in", "--out", "out", "--secret", "none"], "there is no file none: write at least"),
        (["in", "--out", "out", "--slurm", "2"], "Slurm"),
    ],
)
def test_what_cannot_be_graded_is_one_line(tmp_path, arguments, says):
    write_class(tmp_path / "in", {"a": notebook(Q1)})
    (tmp_path / "short").write_text("abc")
    done = course_grade(tmp_path, *arguments)
    assert done.returncode == 2 and says in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr
