"""`course update` on a clone of a small course: a real git, a remote that is a folder."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from course_lib.errors import CourseError
from course_lib.update import update

LESSON, EXERCISE = "notebooks/02_data.ipynb", "exercises/02_data.ipynb"
pytestmark = pytest.mark.skipif(not shutil.which("git"), reason="needs git")


def notebook(*sources: str, output: str = "") -> str:
    outputs = [{"output_type": "stream", "name": "stdout", "text": [output]}] if output else []
    cells = [
        {"cell_type": "code", "source": [source], "outputs": outputs, "execution_count": None, "metadata": {}}
        for source in sources
    ]
    return json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5})


def git(folder: Path, *arguments: str) -> str:
    who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    return subprocess.run(["git", *who, *arguments], cwd=folder, check=True, capture_output=True, text=True).stdout


def publish(course: Path, **files: str | None) -> None:
    for name, content in files.items():
        path = course / {"lesson": LESSON, "exercise": EXERCISE, "extra": "exercises/03_more.ipynb"}.get(name, name)
        path.parent.mkdir(exist_ok=True)
        path.unlink() if content is None else path.write_text(content)
    git(course, "add", "--all")
    git(course, "commit", "-qm", "a version")


@pytest.fixture
def course(tmp_path):
    folder = tmp_path / "published"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    publish(folder, lesson=notebook("one"), exercise=notebook("blank"), library="old", old="goes")
    return folder


@pytest.fixture
def clone(course, tmp_path):
    git(tmp_path, "clone", "-q", str(course), "mine")
    return tmp_path / "mine"


def test_what_was_only_run_is_replaced_and_what_was_written_stays_beside_the_new_version(course, clone):
    (clone / LESSON).write_text(notebook("one", output="seen"))
    (clone / EXERCISE).write_text(notebook("my answer"))
    (clone / "exercises/.progress.jsonl").write_text("points")
    publish(course, lesson=notebook("two"), exercise=notebook("blank, clearer"), library="new", old=None)
    done = update(clone)
    assert (clone / LESSON).read_text() == notebook("two") and (clone / "library").read_text() == "new"
    assert (clone / EXERCISE).read_text() == notebook("my answer")
    assert (clone / "exercises/new-02_data.ipynb").read_text() == notebook("blank, clearer")
    assert (clone / "exercises/.progress.jsonl").read_text() == "points" and not (clone / "old").exists()
    assert done.kept == (EXERCISE,) and set(done.changed) == {LESSON, "library", "old"}
    assert "exercises/02_data.ipynb is as you wrote it" in str(done) and "1 commit(s), 3 file(s)" in str(done)
    assert git(clone, "rev-parse", "HEAD") == git(course, "rev-parse", "HEAD")
    assert git(clone, "diff", "--name-only", "HEAD").split() == [EXERCISE]


def test_the_same_call_again_changes_nothing_and_a_later_version_comes_beside_too(course, clone):
    (clone / EXERCISE).write_text(notebook("my answer"))
    publish(course, exercise=notebook("second"))
    update(clone)
    assert str(update(clone)) == "This is the newest version."
    publish(course, exercise=notebook("third"))
    update(clone)
    assert (clone / EXERCISE).read_text() == notebook("my answer")
    assert (clone / "exercises/new-02_data.ipynb").read_text() == notebook("third")


def test_what_was_written_beside_is_not_overwritten(course, clone):
    (clone / EXERCISE).write_text(notebook("my answer"))
    publish(course, exercise=notebook("second"))
    update(clone)
    beside = clone / "exercises/new-02_data.ipynb"
    beside.write_text(notebook("my second answer"))
    publish(course, exercise=notebook("third"), library="new")
    with pytest.raises(CourseError, match="you wrote in exercises/new-02_data.ipynb, where a newer version would go"):
        update(clone)
    assert beside.read_text() == notebook("my second answer") and (clone / "library").read_text() == "old"
    beside.rename(beside.with_name("second.ipynb"))
    assert update(clone).kept == (EXERCISE,)


def test_after_a_kill_half_way_the_same_call_goes_on(course, clone):
    """Files of the new version are there, and git still names the old one."""
    (clone / EXERCISE).write_text(notebook("my answer"))
    publish(course, lesson=notebook("two"), exercise=notebook("second"), library="new")
    git(clone, "fetch", "-q")
    git(clone, "checkout", "origin/main", "--", "library")
    assert set(update(clone).changed) == {LESSON, "library"}
    assert (clone / EXERCISE).read_text() == notebook("my answer")


def test_a_file_of_the_learners_own_under_a_new_name_stays(course, clone):
    (clone / "exercises/03_more.ipynb").write_text(notebook("mine"))
    publish(course, extra=notebook("theirs"))
    assert update(clone).kept == ("exercises/03_more.ipynb",)
    assert (clone / "exercises/03_more.ipynb").read_text() == notebook("mine")
    assert (clone / "exercises/new-03_more.ipynb").read_text() == notebook("theirs")


def test_a_notebook_that_is_gone_in_the_new_version_stays_where_it_was_written_in(course, clone):
    (clone / EXERCISE).write_text(notebook("my answer"))
    publish(course, exercise=None)
    assert update(clone).kept == () and (clone / EXERCISE).read_text() == notebook("my answer")


def test_a_torn_notebook_is_kept(course, clone):
    (clone / LESSON).write_text("{ torn")
    publish(course, lesson=notebook("two"))
    assert update(clone).kept == (LESSON,) and (clone / LESSON).read_text() == "{ torn"


def test_what_cannot_be_updated_is_said_in_one_line_and_left_alone(course, clone, tmp_path):
    publish(course, library="new", lesson=notebook("two"))
    (clone / "library").write_text("my patch")
    (tmp_path / "unpacked").mkdir()
    mistakes = {
        "no clone": (tmp_path / "unpacked", "is not a git clone: unpack the new version beside it"),
        "changed": (clone, "you have changed library, and so does the new version"),
    }
    for folder, says in mistakes.values():
        with pytest.raises(CourseError, match=says) as refused:
            update(folder)
        assert "\n" not in str(refused.value)
    assert (clone / "library").read_text() == "my patch" and (clone / LESSON).read_text() == notebook("one")
    git(clone, "commit", "-qam", "mine")
    with pytest.raises(CourseError, match="has commits of its own"):
        update(clone)
    git(clone, "reset", "-q", "--hard", "HEAD~1")
    shutil.rmtree(course)
    with pytest.raises(CourseError, match="git fetch failed .*nothing that you wrote was changed"):
        update(clone)
    git(clone, "switch", "-qc", "own")
    with pytest.raises(CourseError, match="follows none of a remote"):
        update(clone)
