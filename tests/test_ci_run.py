""".ci/run by itself, its commands replaced: what is left out where there is no time, and what runs once more."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

RUN = Path(__file__).parents[1] / ".ci" / "run"
# $FAILS in a command's words makes it fail; at the second time it passes.
PYTHON = """#!/bin/bash
case "$*" in "-m pip"*|-c*|-\\ *) exit;; esac
folder=${PYTEST_ADDOPTS#*cache_dir=} folder=${folder%% *}/v/cache
if [[ "$*" = *"$FAILS"* && "$PYTEST_ADDOPTS" != *--last-failed* ]]; then
  [[ "$*" = *pytest* ]] || exit 1
  mkdir -p "$folder" && echo '{"tests/test_one.py::test_two": true}' > "$folder/lastfailed"
  echo "1 failed, 4 passed in 1.00s"
  exit 1
fi
echo "5 passed in 1.00s"
"""
COMMANDS = {
    **{f".venv{stack}/bin/python": PYTHON for stack in ("", "-colab", "-colab-tpu")},
    **{f".venv{stack}/bin/uv": "#!/bin/bash\necho one==1" for stack in ("", "-colab", "-colab-tpu")},
    "bin/make": "#!/bin/bash\necho 100 passed in 1.00s",
    "bin/shuf": "#!/bin/bash\nprintf '%s\\n' \"${@:2}\" | tac",
    "bin/apt-get": "#!/bin/bash",
    "bin/python3": f"""#!/bin/bash
[[ $1 = course_lib/* ]] || exec {sys.executable} "$@"
[[ "$*" != *"$FAILS"* ]]""",
}


@pytest.fixture
def run(tmp_path):
    for name, text in {".ci/run": RUN.read_text(), **COMMANDS}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)

    def given(minutes: int, fails: str = "no command") -> tuple[int, str, list[str]]:
        own = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "CI_MINUTES": str(minutes), "FAILS": fails}
        own |= {"TMPDIR": str(tmp_path)}
        done = subprocess.run([tmp_path / ".ci/run"], env=os.environ | own, capture_output=True, text=True)
        return done.returncode, done.stdout, done.stdout.rpartition("== done")[2].splitlines()[1:]

    return given


def test_with_time_for_all_nothing_is_left_out(run):
    status, said, end = run(minutes=75)
    assert status == 0 and "left out" not in said
    assert len(end) == 1 and end[0].endswith(" passed, 0 failed")


def test_without_time_what_takes_longer_is_left_out_and_named(run):
    status, said, end = run(minutes=0)
    assert status == 0 and end[0].endswith(" passed, 0 failed")
    assert "== newest stack: make test" in said and "== newest stack: Slurm" in said
    assert end[1] == "not checked, this machine is too slow for it in 0 minutes:"
    assert said.count("== left out") == len(end[2:]) == 7 and "Colab's stack" in end


def test_without_time_what_failed_runs_again_all_the_same(run):
    status, _, end = run(minutes=0, fails="test_cluster_slurm")
    assert status == 0 and end[1] == "failed beside others, and ran again:"


def test_an_environment_that_cannot_be_set_up_fails_the_run(run):
    status, _, end = run(minutes=75, fails="requirements-colab.lock")
    assert status == 1 and end[0].endswith(" 1 failed")


def test_the_order_of_what_takes_longer_is_drawn(run):
    _, said, _ = run(minutes=75)
    order = ["lessons and solutions", "library (", "zoo", "programs", "in exercises", "Chromium", "TPU stack: set-up"]
    places = [said.index(name) for name in order]
    assert places == sorted(places), "the last one first, as our shuf has it"


def test_what_fails_beside_others_runs_again_and_is_named(run):
    status, said, end = run(minutes=75, fails="test_accumulate")
    assert (status, end[0].split()[2]) == (0, "0")
    assert "again, with nothing beside: Colab's stack: library" in said
    assert end[1:] == ["failed beside others, and ran again:", "tests/test_one.py::test_two"]


def test_a_failure_that_cannot_be_run_again_fails_the_run(run):
    status, _, end = run(minutes=75, fails="chaos_cluster")
    assert status == 1 and end[0].endswith(" 1 failed")
