"""`course cluster` as a person types it: lines, results, exit codes, one line for each mistake."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from course_lib.cli import main

PROGRAM = """\
def train(task, epochs, word="none"):
    print(word, flush=True)
    if task.index == epochs:
        raise ValueError("no such epoch")
    return 2 * epochs
"""


@pytest.fixture
def program(tmp_path):
    (tmp_path / "train.py").write_text(PROGRAM)
    return f"{tmp_path / 'train.py'}:train"


def test_run_shows_each_line_with_its_task_and_the_results(program, capfd):
    assert main(["cluster", "run", program, "--argument", "epochs=3", "--argument", "word=hello"]) == 0
    printed = capfd.readouterr().out.splitlines()
    assert sorted(printed[:2]) == ["worker 0 | hello", "worker 1 | hello"]
    assert printed[2:] == ["worker 0 returned 6", "worker 1 returned 6"]


def test_json_alone_stands_on_stdout(program, capfd):
    assert main(["cluster", "run", program, "--workers", "1", "--argument", "epochs=3", "--json"]) == 0
    captured = capfd.readouterr()
    assert json.loads(captured.out) == {"results": {"worker 0": 6}, "restarts": 0} and "worker 0 | none" in captured.err


def test_a_failing_program_shows_its_own_traceback_and_exits_with_1(program, capfd):
    assert main(["cluster", "run", program, "--argument", "epochs=1"]) == 1
    shown = capfd.readouterr().err.strip().splitlines()
    assert shown[0] == "worker 1:" and 'File "train.py", line 4' in shown[2]
    assert shown[-1] == "RunFailed: worker 1 failed: ValueError: no such epoch"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["run", "nowhere.py:train"], "nowhere.py cannot be read"),
        (["run", "{program}x"], "defines no 'trainx'"),
        (["run", "no_such_module:train"], "cannot be imported"),
        (["run", "broken:train"], "cannot be imported (ZeroDivisionError"),
        (["run", "..train:train"], "cannot be imported"),
        (["run", "train"], 'is "module:function"'),
        (["run", "{program}", "--argument", "epochs"], "takes NAME=VALUE"),
        (["run", "{program}", "--workers", "0"], "needs workers of at least 1"),
        (["run", "{program}", "--workers", "100000"], "memory are free"),
        (["slurm", "{program}", "--folder", "/dev/null/run"], "cannot be written"),
        (["kubernetes", "{program}", "--name", "My_Job", "--image", "image"], "not a name that Kubernetes takes"),
    ],
)
def test_a_mistake_is_one_line_and_exits_with_2(program, tmp_path, monkeypatch, capsys, words, line):
    (tmp_path / "broken.py").write_text("1 / 0")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    assert main(["cluster", *(word.format(program=program) for word in words)]) == 2
    said = capsys.readouterr().err.strip()
    assert said.startswith("course cluster: ") and line in said and "\n" not in said


def test_a_module_of_the_present_folder_is_found(program, tmp_path):
    course = Path(sys.executable).with_name("course")  # unlike python -m, it does not look there by itself
    command = (
        [str(course)]
        if course.exists()
        else [sys.executable, "-c", "import sys; from course_lib.cli import main; sys.exit(main())"]
    )
    words = ["cluster", "run", "train:train", "--workers", "1", "--argument", "epochs=3"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), "PYTHONSAFEPATH": "1"}
    done = subprocess.run([*command, *words], capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.stdout.splitlines()[-1:] == ["worker 0 returned 6"], done.stderr


def test_arrays_are_lists_in_json(tmp_path, capfd):
    (tmp_path / "arrays.py").write_text("def ones(task):\n    import numpy\n    return numpy.ones((1, 2)), {1}\n")
    assert main(["cluster", "run", f"{tmp_path / 'arrays.py'}:ones", "--workers", "1", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["results"] == {"worker 0": [[[1.0, 1.0]], "{1}"]}


def test_an_unknown_type_is_refused_with_2(program, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["cluster", "run", program, "--workers", "two"])
    assert "invalid int value: 'two'" in capsys.readouterr().err


def test_without_slurm_there_is_one_line(program, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["cluster", "slurm", program, "--folder", str(tmp_path / "run"), "--submit"]) == 2
    said = capsys.readouterr().err.strip()
    assert said.startswith("course cluster: Slurm is not here") and "\n" not in said


def test_slurm_writes_a_script_and_says_how_to_submit_it(program, tmp_path, capsys):
    assert main(["cluster", "slurm", program, "--folder", str(tmp_path / "run"), "--option=--partition=gpu"]) == 0
    assert f"sbatch {tmp_path / 'run' / 'batch.sh'}" in capsys.readouterr().out
    assert "#SBATCH --partition=gpu" in (tmp_path / "run" / "batch.sh").read_text()


def test_kubernetes_prints_what_kubectl_takes(program, capsys):
    assert (
        main(["cluster", "kubernetes", program, "--name", "digits", "--image", "image", "--parameter-servers", "1"])
        == 0
    )
    assert [item["kind"] for item in json.loads(capsys.readouterr().out)["items"]] == ["ConfigMap", "Service", "Job"]


@pytest.mark.parametrize("way", ["run", "slurm", "kubernetes"])
def test_each_way_has_help_with_an_example(way):
    command = [sys.executable, "-m", "course_lib.cli", "cluster", way, "--help"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[1]).stdout
    assert f"Example: course cluster {way} train.py:train" in " ".join(shown.split())
