"""What a wheel of the course holds and can do: the learners' part, without course_lib/staff; and nothing installed."""

import io
import json
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from course_lib import cli, command_list
from course_lib.staff import colab_copy

ROOT = Path(__file__).parents[1]
ANSWER = """
from course_lib.exercises import Exercise
def shard_sizes(global_batch, replicas):
    size, left_over = divmod(global_batch, replicas)
    return [size + (replica < left_over) for replica in range(replicas)]
Exercise("00_start_here")("q1")
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """A folder that holds what the wheel does."""
    folder = tmp_path_factory.mktemp("wheel")
    _, content = colab_copy._wheel(ROOT)
    zipfile.ZipFile(io.BytesIO(content)).extractall(folder)
    return folder


def python(folder: Path, code: str, cwd: Path, *options: str) -> subprocess.CompletedProcess:
    """A Python in cwd that finds the package in the folder, whatever else is installed."""
    before = f"import sys; sys.path.insert(0, {str(folder)!r})\n"
    command = [sys.executable, "-I", *options, "-c", before + code]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120)


def course(folder: Path, cwd: Path, *arguments: str, options: tuple[str, ...] = ()) -> subprocess.CompletedProcess:
    return python(folder, f"from course_lib.cli import main; sys.exit(main({list(arguments)}))", cwd, *options)


def test_the_version_is_that_of_the_package():
    assert cli.VERSION == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


@pytest.mark.parametrize(
    "arguments, says", [(["--help"], "for learners:"), (["--version"], cli.VERSION), (["doctor"], "11_capstone")]
)
def test_what_needs_nothing_runs_where_nothing_is_installed(tmp_path, arguments, says):
    """-S leaves out site-packages."""
    done = course(ROOT, tmp_path, *arguments, options=("-S",))
    assert says in done.stdout and done.stderr == ""
    assert done.returncode == (1 if arguments == ["doctor"] else 0)


def test_help_lists_learners_first_and_every_command_once():
    text = cli._parser().format_help()
    places = [text.index(f"\n  {name} ") for name in command_list.NAMES]
    assert places == sorted(places) and max(map(len, text.splitlines())) <= 80


def test_the_wheel_holds_the_learners_part(wheel):
    held = {path.relative_to(wheel).as_posix() for path in wheel.rglob("*") if path.is_file()}
    sources = [path for path in (ROOT / "course_lib").rglob("*") if path.suffix in (".py", ".toml", ".json")]
    ours = {path.relative_to(ROOT).as_posix() for path in sources}
    assert ours - held == {path for path in ours if path.startswith("course_lib/staff/")}
    assert not any(path.startswith("course_lib/staff") for path in held)


@pytest.mark.parametrize("command", [*command_list.LECTURERS, *command_list.MAINTAINERS, "certificate"])
def test_a_command_for_staff_says_in_one_line_that_it_needs_a_checkout(wheel, tmp_path, command):
    done = course(wheel, tmp_path, command, "--help")
    assert done.returncode == 2 and done.stdout == "" and done.stderr.count("\n") == 1
    assert done.stderr.startswith(f"course {command}: this is for a checkout of the course: `git clone`")


def test_checks_and_learners_commands_work_from_the_wheel(wheel, tmp_path):
    done = python(wheel, ANSWER, tmp_path)
    assert "q1 is right" in done.stdout, done.stderr
    done = course(wheel, tmp_path, "progress", "--json")
    assert json.loads(done.stdout)["points"] == 1, done.stderr
    for command in ("plan", "compile", "cluster", "check"):
        done = course(wheel, tmp_path, command, "--help")
        assert done.returncode == 0 and "Example: course" in done.stdout, done.stderr
    done = course(wheel, tmp_path, "plan", "gpt3-175b", "--chip", "a100-80gb", "--chips", "1024", "--batch", "1536")
    assert done.returncode == 0 and done.stderr == ""
