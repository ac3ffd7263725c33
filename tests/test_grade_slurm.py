"""A class graded by an array job on a real Slurm of two nodes: the marks are those of one machine."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
import two_node_slurm
from test_grade_command import Q1, Q1_WRONG, Q2, course_grade, files, notebook, rows, write_class
from unprivileged import give_to_nobody, in_view

from course_lib.errors import CourseError
from course_lib.staff.grade import grade_slurm

LIMITS = ("--memory-gib", 3, "--cell-seconds", 60)


@pytest.fixture(scope="module")
def class_folder():
    """A folder that both nodes see, inside a Slurm whose tasks reach Python as the user nobody."""
    if os.environ.get("CI") != "true":
        pytest.skip("slow: run by .ci/run")
    if why := two_node_slurm.missing() or ("" if shutil.which("bwrap") else "bubblewrap is not installed"):
        pytest.fail(f"a real Slurm and a sandbox are needed: {why}")
    with tempfile.TemporaryDirectory(prefix="slurm-") as folder, tempfile.TemporaryDirectory() as shared:
        for path in (folder, shared):
            Path(path).chmod(0o755)
        with two_node_slurm.two_nodes(Path(folder), within=in_view):
            yield Path(shared)


def test_the_scripts_ask_for_what_their_tasks_need(tmp_path):
    array, merge = grade_slurm.write(
        tmp_path, ["in", "--out", "my marks"], tasks=5, jobs=2, memory_gib=3, options=["--partition=cpu"]
    )
    for script in (array, merge):
        text = script.read_text()
        assert (
            "#SBATCH --mem=6144M" in text and "#SBATCH --cpus-per-task=2" in text and "#SBATCH --partition=cpu" in text
        )
        assert "grade in --out 'my marks'" in text
        subprocess.run(["bash", "-n", script], check=True)
    assert "--array=0-4" in array.read_text() and '--share "$SLURM_ARRAY_TASK_ID/5"' in array.read_text()
    assert "--share" not in merge.read_text()


def test_without_slurm_there_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CourseError, match="no sbatch.*run `sbatch .*array.sh`, then"):
        grade_slurm.submit(tmp_path / "array.sh", tmp_path / "merge.sh")


def test_two_nodes_give_the_marks_of_one_machine(class_folder):
    texts = {f"learner {number}": notebook(f"# {number}", Q1 if number % 2 else Q1_WRONG, Q2) for number in range(8)}
    write_class(class_folder / "in", {**texts, "zoe": "{not json"})
    (class_folder / "secret").write_text("fedcba9876543210")
    give_to_nobody(class_folder)
    slurms, local = (
        course_grade(class_folder, "in", "--out", out, "--secret", "secret", *LIMITS, *more)
        for out, more in (("slurms", ("--slurm", 3, "--wait")), ("local", ("--jobs", 2)))
    )
    assert slurms.returncode == local.returncode == 0, slurms.stderr + local.stderr
    made = files(class_folder / "slurms")
    logs = {name: made.pop(name).decode() for name in list(made) if name.startswith("logs/")}
    assert made.pop("array.sh") and made.pop("merge.sh")
    wanted = files(class_folder / "local")
    assert made.keys() == wanted.keys() and [name for name in wanted if made[name] != wanted[name]] == []
    assert sum(int(row["points"] or 0) for row in rows(class_folder / "slurms").values()) == 8 + 4
    shares = [
        line for name, log in logs.items() if "share" in name for line in log.splitlines() if line.startswith("[")
    ]
    assert len(shares) == 9 and "; all graded already" in logs["logs/merge.log"]
