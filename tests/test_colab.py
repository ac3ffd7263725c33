"""`course badges` and `course colab`; and self-contained notebooks, run as Colab would run them."""

import ast
import base64
import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pytest
from installed import need

from course_lib import bootstrap, cli, colab_runtime
from course_lib.errors import CourseError
from course_lib.exercises.notebook_cells import question_tags, read_notebook
from course_lib.staff import colab_copy, fork_badges, staff_commands
from course_lib.staff.new_exercises import as_bytes, generate

ROOT = Path(__file__).parents[1]
FORK = "jane-doe/my.course_2"
HOME = fork_badges.Home(FORK, "v1.2")
FOLDERS = ("notebooks", "solutions", "exercises")
NOTEBOOKS = [path.relative_to(ROOT) for folder in FOLDERS for path in sorted((ROOT / folder).glob("*.ipynb"))]
each_notebook = pytest.mark.parametrize("name", NOTEBOOKS, ids=str)

LESSON = "notebooks/00_start_here.ipynb"
EXERCISE = "exercises/00_start_here.ipynb"


@pytest.fixture
def checkout(tmp_path):
    """The course's notebooks and README as they are committed, to be changed at will."""
    root = tmp_path / "course"
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, root / folder, ignore=shutil.ignore_patterns("logs", ".*"))
    shutil.copy(ROOT / "README.md", root)
    return root


def contents(root: Path) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def call(capsys, *arguments: object) -> tuple[int, str, str]:
    """The command in this process: exit code, stdout, stderr."""
    code = cli.main(list(map(str, arguments)))
    said = capsys.readouterr()
    return code, said.out, said.err


# Badges


@pytest.mark.parametrize(
    "name",
    [
        "course",
        "jane/",
        "/course",
        "jane/course/x",
        "https://github.com/jane/course",
        "jane/course.git",
        "jane/..",
        "-jane/course",
        "jane-/course",
        "jane--doe/course",
        "ja ne/course",
        "jane/course\n",
        "jane/(course)",
        "jane/course@",
        "jane/course@a b",
        "a" * 40 + "/course",
    ],
)
def test_a_name_that_is_no_repository_is_refused(tmp_path, name):
    with pytest.raises(CourseError, match="takes OWNER/NAME") as refused:
        fork_badges.home_of(name, tmp_path)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["jane/course", "j/c", FORK, "a" * 39 + "/" + "c" * 100, "Jane/.github"])
def test_a_name_as_github_has_it_is_accepted(tmp_path, name):
    assert fork_badges.home_of(f"{name}@v1", tmp_path) == fork_badges.Home(name, "v1")


@pytest.fixture
def clone(checkout):
    """The checkout as a git repository with one commit."""
    settings = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false", "-c", "core.hooksPath="]

    def git(*words: str) -> str:
        done = subprocess.run(["git", *settings, *words], cwd=checkout, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    git("init", "-q", "-b", "term")
    git("add", ".")
    git("commit", "-q", "-m", "a course")
    return git


@pytest.mark.parametrize(
    "url",
    [
        "https://github.com/jane/course",
        "https://github.com/jane/course.git",
        "https://token@github.com/jane/course.git/",
        "git@github.com:jane/course.git",
        "ssh://git@github.com/jane/course",
    ],
)
def test_the_address_comes_from_git(clone, checkout, url):
    clone("remote", "add", "origin", url)
    commit = clone("rev-parse", "HEAD")
    assert fork_badges.home_of(None, checkout) == fork_badges.Home("jane/course", commit, "term")
    clone("tag", "v3")
    assert fork_badges.home_of(None, checkout) == fork_badges.Home("jane/course", "v3", "term")
    assert str(fork_badges.home_of("ann/c@x", checkout)) == "ann/c@x"


@pytest.mark.parametrize("url", ["https://gitlab.com/jane/course", "/srv/course.git", "https://github.com.evil/a/b"])
def test_a_remote_elsewhere_is_no_address(clone, checkout, url):
    clone("remote", "add", "origin", url)
    with pytest.raises(CourseError, match="no remote `origin` on GitHub"):
        fork_badges.home_of(None, checkout)


def test_without_git_the_commit_must_be_said(checkout):
    with pytest.raises(CourseError, match="--repo jane/course@COMMIT"):
        fork_badges.home_of("jane/course", checkout)


def test_every_notebook_and_the_readme_name_the_fork_alone(checkout):
    assert set(fork_badges.point_at(HOME, checkout)) == {Path("README.md"), *NOTEBOOKS}
    for name in NOTEBOOKS:
        assert fork_badges.named(checkout / name) == str(HOME)
        content = (checkout / name).read_text()
        opens = name.as_posix().replace("solutions", "exercises")
        assert re.findall(r"colab\.research\.google\.com/github/([^)]*)\)", content) == [f"{FORK}/blob/main/{opens}"]
    readme = (checkout / "README.md").read_text()
    assert readme.count(f"/github/{FORK}/blob/main/") == len(
        [name for name in NOTEBOOKS if name.parts[0] != "solutions"]
    )


def test_another_address_replaces_it_and_the_second_time_changes_nothing(checkout):
    fork_badges.point_at(fork_badges.Home("ann/other", "v0", "old"), checkout)
    fork_badges.point_at(HOME, checkout)
    once = contents(checkout)
    assert fork_badges.point_at(HOME, checkout) == [] and contents(checkout) == once
    assert not [name for name, content in once.items() if b"ann/other" in content]


def without_address(path: Path) -> dict:
    notebook = read_notebook(path)
    title, set_up = notebook["cells"][0], next(cell for cell in notebook["cells"] if cell["cell_type"] == "code")
    title["source"] = re.sub(r"\n\[!\[Open in Colab\].*\n", "", title["source"], count=1)
    set_up["source"] = re.sub(r'(?<=REPOSITORY = ")[^"]*', "", set_up["source"], count=1)
    notebook["metadata"].get("course", {})["digest"] = None
    return notebook


def test_nothing_but_the_address_and_the_badge_changes(checkout):
    before = {name: without_address(checkout / name) for name in NOTEBOOKS}
    fork_badges.point_at(HOME, checkout)
    assert before == {name: without_address(checkout / name) for name in NOTEBOOKS}


def test_an_untouched_exercise_stays_one(checkout):
    fork_badges.point_at(HOME, checkout)
    made = generate(checkout / "solutions", checkout / "exercises")
    assert {str(one.path.relative_to(checkout)): one.state for one in made} == {
        str(name): "up to date" for name in NOTEBOOKS if name.parts[0] == "exercises"
    }
    fork_badges.point_at(fork_badges.Home("another/fork", "v1"), checkout)
    before = read_notebook(checkout / EXERCISE)
    solution = checkout / "solutions" / Path(EXERCISE).name
    newer = read_notebook(solution)
    newer["cells"][0]["source"] += " A new edition."
    solution.write_bytes(as_bytes(newer))
    states = {one.path.name: one.state for one in generate(solution.parent, checkout / "exercises")}
    assert states[solution.name] == "written" and read_notebook(checkout / EXERCISE) != before


def test_a_learners_exercise_keeps_what_they_wrote(checkout):
    notebook = read_notebook(checkout / EXERCISE)
    answer = next(cell for cell in notebook["cells"] if question_tags(cell))
    answer["source"], answer["execution_count"] = 'REPOSITORY = "mine"\nanswer = 42', 7
    own = f"[![Open in Colab](https://colab.x/y.svg)](https://colab.research.google.com/github/{FORK}/blob/main/mine.ipynb)"
    notebook["cells"].append({"cell_type": "markdown", "id": "mine", "metadata": {}, "source": own})
    (checkout / EXERCISE).write_bytes(as_bytes(notebook))
    fork_badges.point_at(HOME, checkout)
    after = read_notebook(checkout / EXERCISE)
    changed = [
        (old["cell_type"], new["source"].count(FORK))
        for old, new in zip(notebook["cells"], after["cells"], strict=True)
        if old != new
    ]
    assert after["metadata"] == notebook["metadata"] and changed == [("markdown", 1), ("code", 1)]
    states = {one.path: one.state for one in generate(checkout / "solutions", checkout / "exercises")}
    assert "left alone" in states[checkout / EXERCISE]


def test_a_broken_notebook_stops_it_before_anything_is_written(checkout):
    last = checkout / NOTEBOOKS[-1]
    last.write_bytes(last.read_bytes()[:-2])
    before = contents(checkout)
    with pytest.raises(CourseError, match="is not JSON"):
        fork_badges.point_at(HOME, checkout)
    assert contents(checkout) == before


def test_the_badges_command_says_what_it_changed(capsys, monkeypatch, checkout):
    monkeypatch.setattr(staff_commands, "CHECKOUT", checkout)
    code, out, _ = call(capsys, "badges", "--repo", "jane/course@v1")
    assert (code, out) == (0, f"{len(NOTEBOOKS) + 1} files now name jane/course@v1\n")
    said = "all files name jane/course@v1 already\n"
    assert call(capsys, "badges", "--repo", "jane/course@v1") == (0, said, "")
    code, out, err = call(capsys, "badges", "--repo", "jane")
    assert code == 2 and out == "" and err.count("\n") == 1 and "OWNER/NAME" in err


# The set-up cell


@pytest.mark.parametrize("address", ["", "nobody/at-all@v1"])
def test_without_the_course_the_set_up_cell_says_two_lines_and_no_traceback(tmp_path, address):
    """In a real IPython that has neither the package nor a network: what a first-time reader sees."""
    first = next(cell for cell in read_notebook(ROOT / LESSON)["cells"] if cell["cell_type"] == "code")
    source = re.sub(r'(?<=REPOSITORY = ")[^"]*', address, first["source"], count=1)
    hidden = "import sys; sys.modules['course_lib'] = None  # as if it were not installed\n"
    (tmp_path / "set_up.ipy").write_text(hidden + source)
    nothing = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "http.proxy"}
    done = subprocess.run(
        [sys.executable, "-m", "IPython", "--no-banner", "--no-term-title", "--colors=NoColor", "set_up.ipy"],
        env={**os.environ, **nothing, "GIT_CONFIG_VALUE_0": "http://127.0.0.1:9"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    where = address or "(none is named)"
    assert (done.stdout + done.stderr).strip().splitlines() == [
        f"The course is not installed, and cannot be from git+https://github.com/{where}.",
        "In a fork: `course badges`. Else: `course colab`. See README.md.",
    ]


@each_notebook
def test_the_set_up_cell_installs_only_where_the_course_is_missing(name):
    """As this environment's IPython reads it: Colab's 7.34 under Colab's locks."""
    transformer = need("IPython.core.inputtransformer2").TransformerManager()
    first = next(cell for cell in read_notebook(ROOT / name)["cells"] if cell["cell_type"] == "code")
    _, attempt, *others = ast.parse(transformer.transform_cell(first["source"])).body
    assert isinstance(attempt, ast.Try) and ast.unparse(attempt.body) == "import course_lib"
    assert [handler.type.id for handler in attempt.handlers] == ["ImportError"]
    assert "subprocess.run" in ast.unparse(attempt) and "subprocess" not in "".join(map(ast.unparse, others))


# Self-contained notebooks


WHEEL_NAME, WHEEL = "course_probe-0-py3-none-any.whl", b"no wheel at all, and no test installs it"


@pytest.fixture
def no_build(monkeypatch):
    """A stand-in for the package's wheel, where the test is about the rest of the notebook."""
    monkeypatch.setattr(colab_copy, "_wheel", lambda root: (WHEEL_NAME, WHEEL))


def carrier(path: Path) -> dict:
    (cell,) = [cell for cell in read_notebook(path)["cells"] if cell.get("id") == colab_copy.CELL_ID]
    return cell


def run_where_the_course_is_missing(monkeypatch, source: str) -> dict:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    names: dict[str, object] = {"__name__": "__main__"}
    exec(compile(source, "<the package's cell>", "exec"), names)
    return names


@pytest.mark.usefixtures("no_build")
@each_notebook
def test_a_copy_is_the_notebook_with_one_cell_more(tmp_path, name):
    nbformat = need("nbformat")
    out = colab_copy.write(ROOT / name, tmp_path / "copy.ipynb", ROOT)
    nbformat.validate(nbformat.read(out, as_version=4))
    cells, before = read_notebook(out)["cells"], read_notebook(ROOT / name)["cells"]
    place = next(number for number, cell in enumerate(before) if cell["cell_type"] == "code")
    assert cells.pop(place)["id"] == colab_copy.CELL_ID
    assert [cell for cell in cells if cell["cell_type"] != "markdown"] == [
        cell for cell in before if cell["cell_type"] != "markdown"
    ]
    assert len(cells) == len(before)


@pytest.mark.usefixtures("no_build")
@each_notebook
def test_a_copys_links_and_pictures_need_no_repository(tmp_path, name):
    out = colab_copy.write(ROOT / name, tmp_path / "copy.ipynb", ROOT)
    prose = "\n".join(cell["source"] for cell in read_notebook(out)["cells"] if cell["cell_type"] == "markdown")
    for target in re.findall(r"\]\(([^()\s]+)", prose):
        assert re.match(r"https?://|data:image/\w|#", target), target


@pytest.mark.usefixtures("no_build")
def test_links_become_addresses_and_pictures_travel(checkout, tmp_path):
    picture = b"\x89PNG\r\n\x1a\n a picture"
    (checkout / "notebooks" / "images" / "probe.png").write_bytes(picture)
    (tmp_path / "secret.png").write_bytes(b"secret")
    address = f"https://github.com/{FORK}"
    fork_badges.point_at(HOME, checkout)
    prose = {
        "![a ring](images/probe.png)": f"![a ring](data:image/png;base64,{base64.b64encode(picture).decode()})",
        "[next](01_one_device.ipynb#A-step)": f"[next]({address}/blob/v1.2/notebooks/01_one_device.ipynb#A-step)",
        "[exercises](../exercises)": f"[exercises]({address}/tree/v1.2/exercises)",
        "[![alt](images/probe.png)](../README.md)": f"({address}/blob/v1.2/README.md)",
        # Left as they are: an address, a heading, code, and what lies outside the checkout.
        "[paper](https://example.org/a.pdf)": "[paper](https://example.org/a.pdf)",
        "[above](#Heading)": "[above](#Heading)",
        "`x[0](y)`": "`x[0](y)`",
        "![out](../../secret.png)": "![out](../../secret.png)",
    }
    notebook = read_notebook(checkout / LESSON)
    notebook["cells"].append({"cell_type": "markdown", "id": "links", "metadata": {}, "source": "\n".join(prose)})
    (checkout / LESSON).write_bytes(as_bytes(notebook))
    out = colab_copy.write(checkout / LESSON, tmp_path / "copy.ipynb", checkout)
    lines = read_notebook(out)["cells"][-1]["source"].splitlines()
    for line, wanted in zip(lines, prose.values(), strict=True):
        assert wanted in line
    assert b"secret".hex() not in out.read_text() and base64.b64encode(b"secret").decode() not in out.read_text()


@pytest.mark.skipif(bool(fork_badges.named(ROOT / LESSON)), reason="this tree names a repository")
@pytest.mark.usefixtures("no_build")
def test_without_a_repository_a_link_into_it_is_its_text(checkout, tmp_path):
    prose = (
        "[next](01_one_device.ipynb#A), [`a`](../course_lib/table.py), [![a](images/no.png)](../README.md), `x[0](y)`"
    )
    notebook = read_notebook(checkout / LESSON)
    notebook["cells"].append({"cell_type": "markdown", "id": "links", "metadata": {}, "source": prose})
    (checkout / LESSON).write_bytes(as_bytes(notebook))
    shutil.copytree(ROOT / "course_lib", checkout / "course_lib", ignore=shutil.ignore_patterns("*.pyc"))
    out = colab_copy.write(checkout / LESSON, tmp_path / "copy.ipynb", checkout)
    assert read_notebook(out)["cells"][-1]["source"] == "next, `a`, ![a](images/no.png), `x[0](y)`"


@pytest.mark.usefixtures("no_build")
def test_the_zip_holds_all_and_its_links_stay_inside(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    code, out, err = call(capsys, "colab", "--all")
    names = sorted(str(name) for name in NOTEBOOKS if name.parts[0] != "solutions")
    assert code == 0 and err == "" and f"course_colab.zip: {len(names)} notebooks, " in out
    with zipfile.ZipFile("course_colab.zip") as file:
        assert sorted(file.namelist()) == names and file.testzip() is None
        file.extractall()
    for name in map(Path, names):
        carrier(name)
        prose = "\n".join(cell["source"] for cell in read_notebook(name)["cells"] if cell["cell_type"] == "markdown")
        inside = [target for target in re.findall(r"\]\(([^()\s#]+)", prose) if ":" not in target]
        assert inside and all((name.parent / target).is_file() for target in inside), name
        alone = colab_copy.write(ROOT / name, tmp_path / "alone.ipynb", ROOT)  # else the same: as it runs, so does this
        runs = [
            [cell for cell in read_notebook(path)["cells"] if cell["cell_type"] == "code"] for path in (name, alone)
        ]
        assert runs[0] == runs[1]
    assert call(capsys, "colab") == (2, "", "course colab: course colab takes one notebook, or --all\n")


def test_the_packages_cell_needs_the_standard_library_and_pip_alone():
    tree = ast.parse(colab_copy._carrier(WHEEL_NAME, WHEEL)["source"])
    imports = [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))]
    names = {alias.name.split(".")[0] for node in imports for alias in node.names}
    assert all(isinstance(node, ast.Import) for node in imports) and names <= sys.stdlib_module_names
    assigned = {ast.unparse(node.targets): node.value for node in ast.walk(tree) if isinstance(node, ast.Assign)}
    words = [word.value for word in assigned["pip"].elts if isinstance(word, ast.Constant)]
    assert words[:2] == ["-m", "pip"] and {"--no-index", "--no-deps"} <= set(words) and "--upgrade" not in words


@pytest.mark.parametrize("damage", ["a letter", "cut short", "emptied"])
def test_a_damaged_package_is_refused_in_one_line_before_pip_sees_it(monkeypatch, damage):
    source = colab_copy._carrier(WHEEL_NAME, WHEEL)["source"]
    text = base64.b64encode(WHEEL).decode()
    other = "A" if text[9] != "A" else "B"
    bad = {"a letter": text[:9] + other + text[10:], "cut short": text[:-3], "emptied": ""}
    assert text in source
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("pip ran"))
    with pytest.raises(Exception) as refused:
        run_where_the_course_is_missing(monkeypatch, source.replace(text, bad[damage]))
    (line,) = refused.value._render_traceback_()
    assert re.fullmatch(r"PackageError: .*damaged.*take a fresh copy of the notebook", line)


def test_what_pip_refuses_is_said_in_one_line(monkeypatch):
    need("pip")
    with pytest.raises(Exception) as refused:
        run_where_the_course_is_missing(monkeypatch, colab_copy._carrier(WHEEL_NAME, WHEEL)["source"])
    (line,) = refused.value._render_traceback_()
    assert re.fullmatch(rf"PackageError: pip could not install {WHEEL_NAME}: ERROR: .*invalid.*", line)


def test_where_the_course_is_there_the_cell_does_nothing(monkeypatch):
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("pip ran"))
    exec(colab_copy._carrier(WHEEL_NAME, WHEEL)["source"], {"__name__": "__main__"})


@pytest.mark.usefixtures("no_build")
def test_a_copy_cannot_be_copied(checkout):
    out = colab_copy.write(checkout / LESSON, checkout / "notebooks" / "copy.ipynb", checkout)
    before = out.read_bytes()
    with pytest.raises(CourseError, match="carries the package already"):
        colab_copy.write(out, out.with_name("again.ipynb"), checkout)
    assert out.read_bytes() == before and not out.with_name("again.ipynb").exists()


@pytest.mark.usefixtures("no_build")
def test_a_users_mistakes_are_one_line_each_and_write_nothing(capsys, monkeypatch, checkout, tmp_path):
    monkeypatch.setattr(staff_commands, "CHECKOUT", checkout)
    elsewhere = Path(shutil.copy(checkout / LESSON, tmp_path / "elsewhere.ipynb"))
    bare = checkout / "notebooks" / "bare.ipynb"
    bare.write_text('{"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}')
    unset = read_notebook(checkout / LESSON)
    unset["cells"] = [cell for cell in unset["cells"] if "import course_lib" not in cell["source"]]
    (checkout / "notebooks" / "unset.ipynb").write_bytes(as_bytes(unset))
    mistakes = {
        (elsewhere, tmp_path / "out.ipynb"): "is not in the course's folder",
        (checkout / LESSON, checkout / LESSON): "names the notebook itself",
        (checkout / LESSON, checkout / "exercises" / ".." / LESSON): "names the notebook itself",
        (checkout / LESSON, tmp_path): "names a folder",
        (checkout / LESSON, checkout / "README.md" / "out.ipynb"): "; name another file with --out",
        (checkout / "notebooks" / "none.ipynb", tmp_path / "out.ipynb"): "there is no file",
        (checkout / "README.md", tmp_path / "out.ipynb"): "is not JSON",
        (bare, tmp_path / "out.ipynb"): "has no set-up cell",
        (checkout / "notebooks" / "unset.ipynb", tmp_path / "out.ipynb"): "has no set-up cell",
    }
    before = contents(tmp_path)
    for (notebook, out), wanted in mistakes.items():
        code, said, err = call(capsys, "colab", notebook, "--out", out)
        assert code == 2 and said == "" and err.count("\n") == 1 and wanted in err, (wanted, err)
    assert contents(tmp_path) == before


def test_where_pip_cannot_build_there_is_one_line_with_its_cause(monkeypatch):
    """For real: pip's build environment finds no hatchling on a port where nobody listens."""
    need("pip")
    variables = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_CONFIG_FILE": os.devnull, "PIP_RETRIES": "0"}
    for name, value in {**variables, "PIP_FIND_LINKS": "", "PIP_EXTRA_INDEX_URL": ""}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(CourseError, match="No matching distribution found for hatchling.*PIP_INDEX_URL") as refused:
        colab_copy._wheel(ROOT)
    assert "\n" not in str(refused.value)


# As Colab runs them

ON_COLABS_STACK = importlib.metadata.version("ipython") == "7.34.0"
HAS_TENSORFLOW = importlib.util.find_spec("tensorflow") is not None
RUN_HERE = "00_start_here" if HAS_TENSORFLOW else "05_tpu"
on_colabs_stack = pytest.mark.skipif(not ON_COLABS_STACK, reason="for the environments that Colab's locks give")

OWN = "distributed-training-course"
VERSIONS = "import importlib.metadata as m, json; print(json.dumps({d.name: d.version for d in m.distributions()}))"
FOUND = "import importlib.util as u; print(u.find_spec('course_lib'))"
ORIGIN = f"import importlib.metadata as m; print(m.distribution({OWN!r}).read_text('direct_url.json'))"


def run(*command: object, folder: Path) -> str:
    """A process without this one's paths, settings or repository; its stdout."""
    ours = ("PYTHON", "PYTEST", "JAX", "XLA", "TF_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    done = subprocess.run(list(map(str, command)), cwd=folder, env=kept, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


@pytest.fixture(scope="module")
def without_course():
    """The Python of a copy of this environment, without the course: what Colab starts with.

    Its files are links to this one's; pip replaces files and never writes into them.
    """
    folder = Path(tempfile.mkdtemp(prefix=".venv-copy-", dir=Path(sys.prefix).parent))  # links need one file system
    try:
        shutil.copytree(sys.prefix, folder, symlinks=True, copy_function=os.link, dirs_exist_ok=True)
        python = folder / "bin" / "python"
        run(python, "-m", "pip", "uninstall", "-q", "-y", "distributed-training-course", folder=folder)
        run(python, "-m", "ipykernel", "install", "--sys-prefix", "--name", "python3", folder=folder)
        yield python
    finally:
        shutil.rmtree(folder)


@pytest.fixture
def runtime(without_course, tmp_path):
    """Colab's Python without the course, an empty folder, and the versions before the test."""
    folder = tmp_path / "empty"
    folder.mkdir()
    run(without_course, "-m", "pip", "uninstall", "-q", "-y", OWN, folder=folder)
    before = json.loads(run(without_course, "-c", VERSIONS, folder=folder))
    assert before["ipython"] == "7.34.0" and before["ipywidgets"] == "7.7.1"
    assert ("tensorflow" in before) == HAS_TENSORFLOW
    assert run(without_course, "-c", FOUND, folder=folder) == "None\n"
    return without_course, folder, before


def fill_in(path: Path, exercise: str) -> None:
    """Write the solution's answers into a copy of an exercise, as a learner would."""
    solution = read_notebook(ROOT / "solutions" / exercise)
    answers = {cell["id"]: cell["source"] for cell in solution["cells"] if question_tags(cell)}
    notebook = read_notebook(path)
    for cell in notebook["cells"]:
        cell["source"] = answers.pop(cell["id"], cell["source"])
    assert not answers
    path.write_bytes(as_bytes(notebook))


@pytest.mark.slow(seconds=120)
@on_colabs_stack
@pytest.mark.parametrize("kind", ["notebooks", "exercises", "all"])
def test_a_copy_runs_in_colab_from_an_empty_folder_and_changes_no_version(runtime, kind):
    """A lesson, an exercise, or the exercise out of the zip of all.

    nbclient stops at a cell that raises, and a check of an exercise raises unless the answer is right.
    """
    python, folder, before = runtime
    if kind == "all":
        colab_copy.write_all(folder / "all.zip", ROOT)
        shutil.unpack_archive(folder / "all.zip", folder)
        carried = folder / "exercises" / f"{RUN_HERE}.ipynb"
    else:
        carried = colab_copy.write(ROOT / kind / f"{RUN_HERE}.ipynb", folder / "copy.ipynb", ROOT)
    if kind != "notebooks":
        fill_in(carried, f"{RUN_HERE}.ipynb")
    run(python, "-c", "from nbclient.cli import main; main()", "--inplace", "--timeout=600", carried, folder=folder)

    (said,) = ["".join(output["text"]) for output in carrier(carried)["outputs"]]
    assert re.fullmatch(r"installed distributed_training_course-[\d.]+-py3-none-any\.whl\n", said)
    after = json.loads(run(python, "-c", VERSIONS, folder=folder))
    assert after == before | {OWN: importlib.metadata.version(OWN)}
    origin = json.loads(run(python, "-c", ORIGIN, folder=folder))
    assert origin["archive_info"]["hashes"]["sha256"] in carrier(carried)["source"]


@pytest.mark.slow
@on_colabs_stack
def test_the_set_up_cell_installs_the_course_and_changes_no_version(runtime):
    """As IPython runs it, with this checkout in the place of GitHub's."""
    python, folder, before = runtime
    cells = read_notebook(ROOT / "notebooks" / f"{RUN_HERE}.ipynb")["cells"]
    first = next(cell for cell in cells if cell["cell_type"] == "code")
    script = folder / "set_up.ipy"
    set_up = re.sub(r'(?<=REPOSITORY = ")[^"]*', "jane/course", first["source"], count=1)
    script.write_text(set_up.replace("git+https://github.com/{REPOSITORY or '(none is named)'}", str(ROOT)))
    assert str(ROOT) in script.read_text()
    assert re.search(
        r"^\d devices for ", run(python, "-m", "IPython", "--no-term-title", script, folder=folder), re.MULTILINE
    )
    after = json.loads(run(python, "-c", VERSIONS, folder=folder))
    assert after == before | {OWN: importlib.metadata.version(OWN)}


@pytest.mark.slow
@pytest.mark.skipif(not ON_COLABS_STACK or HAS_TENSORFLOW, reason="for Colab's TPU runtime, which has no TensorFlow")
def test_a_lesson_that_needs_tensorflow_adds_it_to_the_tpu_runtime_and_changes_no_version(runtime):
    """Lesson 00, carried into the runtime; versions by pip's own metadata, before and after."""
    python, folder, before = runtime
    carried = colab_copy.write(ROOT / LESSON, folder / "copy.ipynb", ROOT)
    command = [python, "-c", "from nbclient.cli import main; main()", "--inplace", "--timeout=600", carried]
    run("env", "COLAB_RELEASE_TAG=release", *command, folder=folder)
    after = json.loads(run(python, "-c", VERSIONS, folder=folder))
    assert {name: after[name] for name in before} == before
    assert "tensorflow-cpu" in {name.replace("_", "-") for name in after.keys() - before.keys()}
    outputs = [output for cell in read_notebook(carried)["cells"] for output in cell.get("outputs", ())]
    said = "".join("".join(output.get("text", "")) for output in outputs)
    assert re.search(r"no TensorFlow: added its CPU build [\d.]+, and changed nothing else\.", said)


@pytest.mark.skipif("FREEZE_TPU" not in os.environ, reason="for `make lock-colab`, which is given Colab's whole list")
def test_tensorflow_changes_no_version_of_the_whole_list_of_the_tpu_runtime(tmp_path):
    """What a lesson's set-up cell does there, where every listed package is installed by name and version alone.

    pip reads no more of what is installed. Some of the list is in no package index, so it could not be installed whole.
    """
    lines = Path(os.environ["FREEZE_TPU"]).read_text().splitlines()
    listed = [line.replace(" @ ", "==").split("==")[0] for line in lines if "==" in line or " @ " in line]
    versions = {line.split("==")[0]: line.split("==")[1] for line in lines if "==" in line and " @ " not in line}
    run(bootstrap.find_python("3.13"), "-m", "venv", tmp_path / "venv", folder=tmp_path)
    python = tmp_path / "venv" / "bin" / "python"
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", folder=tmp_path).strip())
    for name in listed:
        version = versions.get(name, "1.0")  # of a file with an address; its name alone counts
        folder = site / f"{re.sub(r'[-_.]+', '_', name)}-{version}.dist-info"
        folder.mkdir(exist_ok=True)
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (folder / "INSTALLER").write_text("Colab\n")
    run(python, "-m", "pip", "install", "-q", "--no-deps", "--disable-pip-version-check", ROOT, folder=tmp_path)
    before = json.loads(run(python, "-c", VERSIONS, folder=tmp_path))
    add = "from course_lib import colab_runtime; print(colab_runtime.add_tensorflow())"
    assert "added its CPU build" in run(python, "-c", add, folder=tmp_path)
    after = json.loads(run(python, "-c", VERSIONS, folder=tmp_path))
    assert set(listed) <= before.keys() and "tensorflow-cpu" not in before
    assert {name: after[name] for name in before} == before
    print(f"{len(listed)} listed, none changed; added: {', '.join(sorted(after.keys() - before.keys()))}")


def test_where_no_build_fits_there_is_one_line(monkeypatch):
    """For real: pip finds no package on a port where nobody listens."""
    need("pip")
    variables = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_CONFIG_FILE": os.devnull, "PIP_RETRIES": "0"}
    for name, value in {**variables, "PIP_FIND_LINKS": "", "PIP_EXTRA_INDEX_URL": ""}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(colab_runtime, "_build", lambda: "tensorflow-cpu==0.0.1")  # so that none here satisfies it
    with pytest.raises(CourseError, match="cannot be added to this runtime.*Change runtime type") as refused:
        colab_runtime.add_tensorflow()
    assert "\n" not in str(refused.value)


@pytest.mark.slow
@on_colabs_stack
def test_the_same_checkout_gives_the_same_copy(tmp_path):
    one, two = (
        colab_copy.write(ROOT / LESSON, tmp_path / name, ROOT).read_bytes() for name in ("one.ipynb", "two.ipynb")
    )
    assert one == two
