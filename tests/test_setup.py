"""Set-up: what it does on bad machines, what it repeats and what it leaves alone.

That it works on a good machine is shown by these tests running: make test sets up first.
"""

import ast
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from course_lib import bootstrap
from course_lib.bootstrap import SetUpError

ROOT = Path(__file__).parents[1]
HERE = "%d.%d" % sys.version_info[:2]


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A course with one package to install."""
    folder = tmp_path / "course"
    (folder / "course_lib").mkdir(parents=True)
    shutil.copy(bootstrap.__file__, folder / "course_lib")
    (folder / "pyproject.toml").write_text('[project]\nname = "x"\nversion = "1"\n')
    (folder / "requirements.lock").write_text("one==1.0\n")
    monkeypatch.setattr(bootstrap, "ROOT", folder)
    return folder


def run_script(checkout: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "course_lib/bootstrap.py", *arguments]
    return subprocess.run(
        command, cwd=checkout, env={**os.environ, **variables}, capture_output=True, text=True, timeout=300
    )


def test_an_old_python_can_read_the_script():
    ast.parse(Path(bootstrap.__file__).read_text(), feature_version=(3, 6))


def pretend_version(monkeypatch, version: tuple, folders: list[Path], home: Path) -> None:
    """This interpreter says it is another version, and others are found in these places alone."""
    monkeypatch.setattr(bootstrap, "sys", SimpleNamespace(version_info=version, executable=sys.executable))
    monkeypatch.setenv("PATH", os.pathsep.join(map(str, folders)))
    monkeypatch.setenv("HOME", str(home))


@pytest.mark.parametrize("version", [(3, 8, 18), (3, 14, 0)])
def test_a_wrong_python_alone_on_the_machine_is_refused_in_one_line(monkeypatch, tmp_path, version):
    pretend_version(monkeypatch, version, [tmp_path], tmp_path)
    with pytest.raises(SetUpError) as caught:
        bootstrap.find_python()
    line = str(caught.value)
    assert "Python 3.11, 3.12 or 3.13 is needed" in line and "this is Python %d.%d.%d" % version in line
    assert "install one" in line and "\n" not in line


def executable(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(script)
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("place", ["bin", "home/.pyenv/versions/%s.9/bin" % HERE])
def test_a_right_python_elsewhere_is_taken(monkeypatch, tmp_path, place):
    """Past a shim that is on the path and does not run, as pyenv's do for versions not chosen."""
    executable(tmp_path / "shims" / f"python{HERE}", "#!/bin/sh\necho command not found >&2; exit 127\n")
    name = f"python{HERE}" if place == "bin" else "python3"
    right = executable(tmp_path / place / name, f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    pretend_version(monkeypatch, (3, 8, 18), [tmp_path / "shims", tmp_path / "bin"], tmp_path / "home")
    assert bootstrap.find_python() == str(right)


def test_a_python_that_cannot_make_environments_is_refused_with_the_package_to_install(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(bootstrap, "_makes_environments", lambda python, version: False)
    with pytest.raises(SetUpError, match=f"python{HERE}-venv"):
        bootstrap.find_python()


def test_too_little_disk_is_said_before_anything_is_installed(monkeypatch, checkout, capsys):
    monkeypatch.setattr(bootstrap.shutil, "disk_usage", lambda path: SimpleNamespace(free=2**30))
    monkeypatch.setattr(bootstrap, "_step", lambda *_: pytest.fail("a step ran"))
    assert bootstrap.main([]) == 1
    assert "4.0 GiB of free disk are needed" in (said := capsys.readouterr().err) and "has 1.0 GiB" in said
    assert said.count("\n") == 1


def test_what_is_installed_already_needs_no_disk_again(monkeypatch, checkout):
    monkeypatch.setattr(bootstrap.shutil, "disk_usage", lambda path: SimpleNamespace(free=2**30))
    venv = checkout / ".venv"
    venv.mkdir()
    with (venv / "big").open("wb") as file:
        file.truncate(bootstrap.NEEDED_BYTES - 2**30)  # a sparse file: its size without its blocks
    bootstrap.require_disk(venv)


def test_a_folder_that_cannot_be_written_is_named(monkeypatch, checkout, capsys):
    (checkout / ".venv").write_text("a file stands where the environment goes")
    assert bootstrap.main([]) == 1
    said = capsys.readouterr().err
    assert str(checkout / ".venv") in said and "cannot be written" in said and said.count("\n") == 1


def test_without_a_network_there_is_one_line_and_a_log(checkout):
    """For real: an index on a port where nobody listens."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        index = "http://127.0.0.1:%d/simple" % closed.getsockname()[1]
        variables = {
            "PIP_INDEX_URL": index,
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_FIND_LINKS": "",
            "PIP_EXTRA_INDEX_URL": "",
        }
        done = run_script(checkout, **variables)
    assert done.returncode == 1
    assert "package index cannot be reached" in done.stderr and done.stderr.count("\n") == 1
    log = checkout / ".venv" / "set-up.log"
    assert str(log) in done.stderr and "No matching distribution found for uv" in log.read_text()


@pytest.mark.parametrize(
    "output, cause",
    [
        ("error: Failed to fetch: `x`\n  Caused by: dns error: failed to lookup", "cannot be reached"),
        ("ERROR: Could not install: [Errno 28] No space left on device", "disk is full"),
        ("error: failed to write: Permission denied (os error 13)", "cannot be written"),
        ("some\nodd words\n\n", "odd words"),
        ("", "no output"),
    ],
)
def test_a_failed_tool_is_explained(output, cause):
    assert cause in bootstrap.explain(output)


@pytest.mark.parametrize("arguments", [["--venv", "../x"], ["--venv", "notebooks"], ["--lock", "none.lock"], ["--bad"]])
def test_a_mistake_in_the_call_is_no_traceback(checkout, arguments):
    done = run_script(checkout, *arguments)
    assert done.returncode == 2 and "error:" in done.stderr and "Traceback" not in done.stderr


class Steps:
    """Stands for pip and uv: keeps the titles, leaves what the steps would leave, and fails on request."""

    def __init__(self):
        self.titles: list[str] = []
        self.fails_at = ""

    def __call__(self, title: str, command: list, log: Path) -> None:
        self.titles.append(title[:3])
        if self.fails_at and title.startswith(self.fails_at):
            raise KeyboardInterrupt
        venv = log.parent
        if title.startswith("1/5"):
            (venv / "bin").mkdir(exist_ok=True)
            (venv / "pyvenv.cfg").write_text("version = %d.%d.%d\ncommand = venv %s\n" % (*sys.version_info[:3], venv))
            executable(venv / "bin" / "python", "#!/bin/sh\nexit 0\n")


@pytest.fixture
def steps(monkeypatch, checkout):
    steps = Steps()
    monkeypatch.setattr(bootstrap, "_step", steps)
    monkeypatch.setattr(bootstrap, "_index_options", lambda python: [])
    return steps


ALL = ["1/5", "2/5", "3/5", "4/5", "5/5"]


def titles_of_a_run(steps) -> list[str]:
    steps.titles = []
    bootstrap.main([])
    return steps.titles


def test_a_second_run_does_nothing(steps, capsys):
    assert titles_of_a_run(steps) == ALL
    capsys.readouterr()
    assert titles_of_a_run(steps) == []
    assert capsys.readouterr().out == ""


def test_an_interrupted_run_is_taken_up_again(steps, capsys):
    steps.fails_at = "3/5"
    assert bootstrap.main([]) == 130
    assert "again to go on" in capsys.readouterr().err
    steps.fails_at = ""
    assert titles_of_a_run(steps) == ALL[1:]
    assert titles_of_a_run(steps) == []


def test_a_half_made_environment_is_made_again(steps, checkout):
    titles_of_a_run(steps)
    (checkout / ".venv" / ".set-up").unlink()
    executable(checkout / ".venv" / "bin" / "python", "#!/bin/sh\nexit 1\n")  # has no pip
    assert titles_of_a_run(steps) == ALL


@pytest.mark.parametrize("file", ["requirements.lock", "pyproject.toml"])
def test_a_changed_lock_is_installed_into_the_same_environment(steps, checkout, file):
    titles_of_a_run(steps)
    with (checkout / file).open("a") as changed:
        changed.write("\n")
    assert titles_of_a_run(steps) == ALL[1:]


def test_an_environment_of_another_python_is_made_again(steps, checkout):
    titles_of_a_run(steps)
    config = checkout / ".venv" / "pyvenv.cfg"
    config.write_text(config.read_text().replace("version = 3.", "version = 2."))
    assert titles_of_a_run(steps) == ALL


def test_a_moved_course_gets_a_new_environment(steps, checkout, monkeypatch):
    titles_of_a_run(steps)
    moved = checkout.rename(checkout.with_name("moved"))
    monkeypatch.setattr(bootstrap, "ROOT", moved)
    assert titles_of_a_run(steps) == ALL
