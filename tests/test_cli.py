"""The `course` command, as a person types it: answers, exit codes, and no traceback."""

import io
import json
import os
import re
import shlex
import socket
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest
from installed import need

from course_lib import cli, command_list, devices, doctor, waiting
from course_lib.lessons import LESSONS
from course_lib.staff import store_outputs

ROOT = Path(__file__).parents[1]
COMMANDS = command_list.NAMES


def course(*arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "course_lib.cli", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)


def call(capsys, *arguments: object) -> tuple[int, str, str]:
    """The command in this process: exit code, stdout, stderr."""
    try:
        code = cli.main(list(map(str, arguments)))
    except SystemExit as exit:
        code = exit.code
    said = capsys.readouterr()
    return code, said.out, said.err


@pytest.mark.parametrize("command", COMMANDS)
def test_help_holds_an_example_that_parses(capsys, command):
    code, out, _ = call(capsys, command, "--help")
    assert code == 0
    example = " ".join(re.search(r"Example: course (.*)", out, re.DOTALL)[1].split())
    assert example.startswith(command)
    cli._parser().parse_args(shlex.split(example))


@pytest.mark.parametrize("line", ["doctor --bad", "check", "lab --port 0", "lab --port 99999", "lab --port x"])
def test_a_mistake_in_the_call_exits_with_2(capsys, line):
    code, out, err = call(capsys, *line.split())
    assert code == 2 and "usage:" in err and out == ""


@pytest.mark.parametrize("line", ["", "help", "--help", *(f"{name} --help" for name in COMMANDS), "cluster run --help"])
def test_help_is_there_however_it_is_asked_for_and_80_columns_wide(capsys, monkeypatch, line):
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = call(capsys, *line.split())
    assert code == 0 and "usage: course" in out
    assert [text for text in out.splitlines() if len(text) > 80] == []
    if line in ("", "help"):
        assert call(capsys, "--help")[1] == out and all(re.search(rf"^  {name} ", out, re.M) for name in COMMANDS)


def test_help_of_a_command_is_its_own(capsys):
    assert call(capsys, "help", "plan") == call(capsys, "plan", "--help")


@pytest.mark.parametrize(
    "line, said",
    [
        ("dcotor", "perhaps you mean `course doctor`; `course --help` names all"),
        ("nothing", "there is no such command; `course --help` names all"),
        ("help porgress", "perhaps you mean `course progress`"),
        ("check 99", "0 exercises begin with '99'; name one of 00_start_here, 01_one_device,"),
        (
            "check 1",
            "3 exercises begin with '1'; name one of 10_choosing_a_strategy, 11_capstone, 12_when_it_hangs, or",
        ),
        ("progress --folder /no/such", "there is no folder /no/such"),
    ],
)
def test_what_is_not_there_is_said_in_one_line_with_what_is(capsys, line, said):
    code, out, err = call(capsys, *line.split())
    assert (code, out, err.count("\n")) == (2, "", 1) and said in err


@pytest.mark.parametrize("line", ["doctor", "progress"])
def test_reports_fit_80_columns(capsys, line):
    _, out, _ = call(capsys, line)
    assert [text for text in out.splitlines() if len(text) > 80] == []


def test_a_reader_that_has_gone_ends_the_command_without_a_word():
    """As `| head` is after some lines."""
    reader, writer = os.pipe()
    os.close(reader)
    call = [sys.executable, "-m", "course_lib.cli", "plan", "gpt2-124m", "--chip", "a100-80gb", "--batch", "8"]
    done = subprocess.run(call, cwd=ROOT, stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


def test_a_users_mistake_shows_one_line_and_no_traceback():
    """In a process of its own, as a shell sees it."""
    done = course("check", "no_such.ipynb")
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr == "course check: there is no file no_such.ipynb\n"


# doctor


def machine(**changes) -> devices.Machine:
    versions = dict.fromkeys(devices.PACKAGES, "1.0") | changes.pop("versions", {})
    known = {"cores": 2, "memory_bytes": 8 * 2**30, "gpus": (), "tpu": None, "python": "3.11.7", "versions": versions}
    return devices.Machine(**{**known, **changes})


TWO_LESSONS = [replace(LESSONS[name], packages=()) for name in ("02_data_parallelism", "05_tpu")]


def diagnose(monkeypatch, installed: tuple[str, ...] = (), **changes) -> doctor.Diagnosis:
    """What doctor says of a machine that these values describe."""
    monkeypatch.setattr(doctor.devices, "machine", lambda: machine(**changes))
    monkeypatch.setattr(doctor, "_has", lambda distribution: distribution in installed)
    return doctor.diagnose(TWO_LESSONS, Path.cwd())


def test_doctor_finds_this_environment_ready(capsys):
    code, out, _ = call(capsys, "doctor")
    assert code == 0 and all(lesson in out for lesson in LESSONS)
    assert re.search(r"CPU cores +\d+\n", out) and re.search(r"free disk +\d+ GiB\n", out)


def test_doctor_says_the_same_in_json(capsys):
    code, out, _ = call(capsys, "doctor", "--json")
    answer = json.loads(out)
    assert code == 0 and answer["ready"] is True
    assert answer["machine"]["python"] == ".".join(map(str, sys.version_info[:3]))
    assert [lesson["lesson"] for lesson in answer["lessons"]] == list(LESSONS)


def test_doctor_works_where_only_this_package_is_installed():
    """A bare interpreter: no site-packages, no environment."""
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); from pathlib import Path; "
        "from course_lib import doctor, lessons; print(doctor.diagnose(lessons.LESSONS.values(), Path.cwd()))"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("missing tensorflow, ") == 11 and done.stdout.count("missing jax, ") == 2


def test_doctor_starts_no_framework():
    code = "import sys; from course_lib.cli import main; main(['doctor']); print([*sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert not {"'tensorflow'", "'jax'", "'keras'"} & set(re.findall(r"'\w+'", loaded))


@pytest.mark.parametrize(
    "changes, backends",
    [
        ({}, ["TensorFlow on 4 simulated CPU devices", "JAX on 8 simulated CPU devices"]),
        ({"gpus": ("A",) * 2}, ["TensorFlow on 4 simulated CPU devices", "JAX on 8 simulated CPU devices"]),
        ({"gpus": ("A",) * 8}, ["TensorFlow on 4 GPUs", "JAX on 8 GPUs"]),
        ({"tpu": "v5e-8"}, ["TensorFlow on 4 simulated CPU devices", "JAX on v5e-8, or 8 simulated CPU devices"]),
    ],
)
def test_doctor_names_the_backend_of_each_lesson(monkeypatch, changes, backends):
    assert [lesson.backend for lesson in diagnose(monkeypatch, **changes).lessons] == backends


def test_doctor_names_what_is_missing_and_the_command_that_gets_it(monkeypatch, capsys):
    diagnosis = diagnose(monkeypatch, versions={"tensorflow": None})
    first, second = diagnosis.lessons
    assert not diagnosis.ready and not first.ready and second.ready
    assert first.missing == ("tensorflow",) and first.remedy.endswith("-m pip install tensorflow")
    assert call(capsys, "doctor")[0] == 1


def test_doctor_names_a_memory_that_is_too_small(monkeypatch):
    (first, _) = diagnose(monkeypatch, memory_bytes=2 * 2**30).lessons
    assert "2.0 of 3 GiB" in str(first) and "Colab" in first.remedy


def test_doctor_says_when_gpus_lie_idle(monkeypatch):
    (line,) = diagnose(monkeypatch, installed=("tensorflow-cpu", doctor.PROFILE_VIEWER), gpus=("A",) * 4).advice
    assert "4 GPU(s)" in line and "tensorflow[and-cuda]" in line
    assert diagnose(monkeypatch, installed=(doctor.PROFILE_VIEWER,), gpus=("A",) * 4).advice == ()


def test_doctor_says_how_to_get_the_profile_viewer(monkeypatch):
    (line,) = diagnose(monkeypatch).advice
    assert line.endswith(f"-m pip install {doctor.PROFILE_VIEWER}")


@pytest.mark.parametrize(
    "release, folder, system, warns",
    [
        ("5.15.153.1-microsoft-standard-WSL2", "/home/ada/course", "Windows, through WSL", False),
        ("5.15.153.1-microsoft-standard-WSL2", "/mnt/c/Users/ada/course", "Windows, through WSL", True),
        ("5.15.153.1-microsoft-standard-WSL2", "/mnt/wsl/data/course", "Windows, through WSL", False),
        ("4.4.0-19041-Microsoft", "/mnt/d", "Windows, through WSL", True),
        ("6.1.0-18-amd64", "/mnt/c/course", "Linux 6.1.0-18-amd64", False),
    ],
)
def test_doctor_recognises_wsl_and_a_checkout_on_windows_disk(monkeypatch, release, folder, system, warns):
    monkeypatch.setattr(doctor.devices, "machine", machine)
    monkeypatch.setattr(doctor.platform, "system", lambda: "Linux")
    monkeypatch.setattr(doctor.platform, "release", lambda: release)
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda folder: SimpleNamespace(free=2**33))
    diagnosis = doctor.diagnose(TWO_LESSONS, Path(folder))
    assert str(diagnosis).startswith(f"{'system':20} {system}\n") and diagnosis.as_dict()["system"] == system
    assert (doctor.SLOW_DISK in diagnosis.advice) == warns == (doctor.SLOW_DISK in str(diagnosis))


# lab


def test_lab_refuses_a_taken_port_in_one_line(capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, _, err = call(capsys, "lab", "--port", port)
    assert code == 2 and f"port {port} cannot be used" in err and err.count("\n") == 1


def test_lab_listens_on_this_machine_alone_and_opens_the_first_lesson(monkeypatch):
    for command in (cli.lab_command(None, True), cli.lab_command(8890, False)):
        assert "--ip=127.0.0.1" in command
        assert any(option.endswith("/lab/tree/notebooks/00_start_here.ipynb") for option in command)
    assert "--port=8890" in command and "--no-browser" in command


def test_lab_asks_nothing_and_shows_whole_names():
    jupyterlab = need("jupyterlab")  # Colab has none
    (settings,) = (option.partition("=")[2] for option in cli.lab_command(None, True) if "app_settings_dir" in option)
    overrides = json.loads((Path(settings) / "overrides.json").read_text())
    for plugin, values in overrides.items():  # a setting that JupyterLab no longer has would be dropped in silence
        extension, _, name = plugin.removeprefix("@jupyterlab/").partition(":")
        schema = Path(jupyterlab.__file__).parent / "schemas" / "@jupyterlab" / extension / f"{name}.json"
        assert values.keys() <= json.loads(schema.read_text())["properties"].keys()


# check, progress


def test_check_says_which_exercises_there_are(capsys):
    code, _, err = call(capsys, "check", "no_such")
    assert code == 2 and "0 exercises begin with 'no_such'" in err


@pytest.mark.parametrize("content, complaint", [("{", "is not JSON"), ("[1]", "not a notebook"), (None, "no file")])
def test_check_refuses_what_is_no_notebook(capsys, tmp_path, content, complaint):
    path = tmp_path / "x.ipynb"
    if content:
        path.write_text(content)
    code, _, err = call(capsys, "check", path)
    assert code == 2 and complaint in err and err.count("\n") == 1


def test_check_exits_with_0_only_when_all_is_right(capsys, monkeypatch):
    from course_lib.exercises import run_notebook
    from course_lib.exercises.verdict import Verdict

    right = Verdict("q1", "One", True, 1, 1)
    wrong = Verdict("q2", "Two", False, 0, 2, problem="is blank")
    for verdicts, expected in (([right], 0), ([right, wrong], 1)):
        shown = lambda path, tell, at, verdicts=verdicts: [tell(verdict) for verdict in verdicts] and verdicts  # noqa: E731
        monkeypatch.setattr(run_notebook, "check_notebook", shown)
        code, out, _ = call(capsys, "check", "x.ipynb")
        assert code == expected and all(verdict.message in out for verdict in verdicts)
        assert f"1 of {sum(verdict.of for verdict in verdicts)} points" in out
        printed = json.loads(call(capsys, "check", "x.ipynb", "--json")[1])
        assert [verdict["right"] for verdict in printed] == [verdict.right for verdict in verdicts]


def test_progress_reads_the_folder_it_is_given(capsys, tmp_path):
    code, out, _ = call(capsys, "progress", "--folder", tmp_path)
    assert code == 0 and "0 of" in out
    printed = json.loads(call(capsys, "progress", "--folder", tmp_path, "--json")[1])
    assert all(exercise["points"] == 0 for exercise in printed["exercises"])


# run-notebooks


def notebook(path: Path, *sources: str, tags: dict[int, list[str]] | None = None) -> Path:
    cells = [nbformat.v4.new_code_cell(source, id=f"c{number}") for number, source in enumerate(sources)]
    for number, names in (tags or {}).items():
        cells[number].metadata["tags"] = names
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    return path


def test_a_notebook_is_run_in_its_folder_and_stored_clean(capsys, tmp_path):
    printing = "print('a', flush=True); print('b', flush=True)"
    sources = ["import pathlib", printing, "pathlib.Path.cwd().name", "1 / 0"]
    path = notebook(tmp_path / "x.ipynb", *sources, tags={3: ["raises-exception"]})
    code, out, _ = call(capsys, "run-notebooks", path)
    assert code == 0 and re.search(r"\d+\.\d s, peak memory \d+\.\d\d GiB", out)
    stored = nbformat.read(path, as_version=4)
    assert [cell.execution_count for cell in stored.cells] == [1, 2, 3, 4]
    assert [output.text for output in stored.cells[1].outputs] == ["a\nb\n"]
    assert stored.cells[2].outputs[0].data["text/plain"] == repr(tmp_path.name)
    assert stored.cells[3].outputs[0].traceback == ["ZeroDivisionError: division by zero"]
    assert stored.cells[3].metadata == {"tags": ["raises-exception"]} and stored.cells[1].metadata == {}
    assert stored.metadata == store_outputs.metadata(path.stem)
    assert not list(tmp_path.glob("*.new"))


@pytest.mark.parametrize(
    "seconds, before, stored", [(3.9, 0, 0), (4, 0, 5), (400, 0, 180), (14, 10, 10), (17, 10, 20), (2, 5, 0)]
)
def test_a_long_cell_keeps_about_how_long_it_took_while_that_is_nearly_right(seconds, before, stored):
    assert store_outputs.about(seconds, before) == stored


def test_each_cell_is_stored_with_its_own_seconds(monkeypatch, tmp_path):
    path = notebook(tmp_path / "x.ipynb", "import time", "time.sleep(0.2)")
    monkeypatch.setattr(store_outputs, "about", lambda seconds, before: 10 if seconds > 0.2 else before)
    store_outputs.execute(path, store=True)
    assert nbformat.read(path, 4).cells[1].metadata == {"seconds": 10}


def test_peak_memory_is_the_kernels(tmp_path):
    path = notebook(tmp_path / "x.ipynb", "held = bytearray(500 * 2**20)")
    assert store_outputs.execute(path, store=False).peak_bytes > 500 * 2**20


@pytest.mark.parametrize(
    "sources, tags, complaint",
    [
        (["1", "1 / 0", "2"], {}, "cell 2 raised ZeroDivisionError: division by zero"),
        (["1"], {0: ["raises-exception"]}, "cell 1 is tagged raises-exception and did not raise"),
        (["import os; os._exit(1)"], {}, "cell 1: the kernel died"),
    ],
)
def test_a_notebook_that_fails_is_not_stored(capsys, tmp_path, sources, tags, complaint):
    path = notebook(tmp_path / "x.ipynb", *sources, tags=tags)
    before = path.read_bytes()
    code, out, _ = call(capsys, "run-notebooks", path)
    assert code == 1 and complaint in out and "0 of 1 notebooks ran" in out
    assert path.read_bytes() == before


def test_check_mode_stores_nothing(capsys, tmp_path):
    path = notebook(tmp_path / "x.ipynb", "print(1)")
    before = path.read_bytes()
    assert call(capsys, "run-notebooks", "--check", path)[0] == 0
    assert path.read_bytes() == before


def test_run_notebooks_refuses_what_is_not_json(capsys, tmp_path):
    (tmp_path / "x.ipynb").write_text("{")
    code, _, err = call(capsys, "run-notebooks", tmp_path / "x.ipynb")
    assert code == 2 and "is not JSON" in err and err.count("\n") == 1


# A line to wait by


class Terminal(io.StringIO):
    """A terminal's stderr; `shown` is set once a line is there that says where the work is."""

    def __init__(self) -> None:
        super().__init__()
        self.shown = threading.Event()

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if "cell 3 of 20, " in text:
            self.shown.set()
        return super().write(text)


def test_a_terminal_shows_what_goes_on_and_is_clean_at_the_end(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(waiting, "FIRST_SECONDS", 0.01)
    with waiting.waiting("checking 00") as at:
        at("cell 3 of 20")
        assert terminal.shown.wait(60)
    assert re.search(r"checking 00, cell 3 of 20, \d+ s", terminal.getvalue())
    assert terminal.getvalue().endswith("\r\033[K")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_that_takes_long_says_so_and_its_line_makes_way(monkeypatch, command):
    terminal = Terminal()

    def slow(arguments):
        arguments.at("cell 3 of 20")
        assert terminal.shown.wait(60)
        print("the answer")
        return 0

    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setattr(waiting, "FIRST_SECONDS", 0.01)
    monkeypatch.setattr(cli, "_found", lambda name: (slow, lambda parser: None, ""))
    assert cli.main([command]) == 0
    assert re.search(rf"course {command}, cell 3 of 20, \d+ s\r\033\[Kthe answer\n", terminal.getvalue())


def test_a_file_is_sent_nothing(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with waiting.waiting("checking 00") as at:
        at("cell 3 of 20")
    assert sys.stderr.getvalue() == ""


def test_a_verdict_is_shown_when_it_is_known(monkeypatch):
    """The first before the cells of the second have run."""
    from course_lib.exercises import run_notebook

    events, take = [], run_notebook._Run.take
    monkeypatch.setattr(run_notebook._Run, "take", lambda run, cell: (events.append("cell"), take(run, cell))[1])
    run_notebook.check_notebook(ROOT / "exercises/00_start_here.ipynb", lambda verdict: events.append(verdict.question))
    assert [event for event in events if event != "cell"] == ["q1", "q2", "q3", "q4"]
    assert all("cell" in events[events.index(f"q{n}") : events.index(f"q{n + 1}")] for n in (1, 2, 3))
