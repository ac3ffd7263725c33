"""What every lesson and solution file must be like; nbval runs them, this reads them."""

import ast
import copy
import json
import re
from pathlib import Path

import nbformat
import pytest
from nbval.plugin import find_comment_markers, find_metadata_tags, get_sanitize_patterns

from course_lib.lessons import LESSONS, NOTEBOOKS
from course_lib.staff import fork_badges, set_up_cell, store_outputs

ROOT = Path(__file__).parents[1]
PATHS = sorted([*ROOT.glob("notebooks/*.ipynb"), *ROOT.glob("solutions/*.ipynb")])
each_notebook = pytest.mark.parametrize("path", PATHS, ids=lambda path: f"{path.parent.name}/{path.stem}")

NAMED = fork_badges.named(ROOT / "notebooks" / "00_start_here.ipynb")  # "", or a fork's after `course badges`
SET_UP = set_up_cell.TEXT.replace('""', f'"{NAMED}"', 1)
BADGE = "https://colab.research.google.com/github/"
MACHINE_PATH = re.compile(r"(?<![\w.~<])/(?:root|home|Users|tmp|private|var|opt|mnt|work)/\w")

NOT_COMPARED = {"image/png", "image/jpeg", "application/vnd.jupyter.widget-view+json"}  # by nbval
MEASURED = {"<ratio>", "bottleneck: <part>", "<time> later", "mean staleness <number>"}
SANITIZE = dict(get_sanitize_patterns((ROOT / "tests/sanitize.cfg").read_text()))


def read(path: Path):
    return nbformat.read(path, as_version=4)


def code_cells(notebook) -> list:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def outputs(notebook) -> list:
    return [output for cell in code_cells(notebook) for output in cell.outputs]


def texts(output) -> list[str]:
    """What nbval compares of an output."""
    if output.output_type == "stream":
        return [output.text]
    if output.output_type == "error":
        return [output.ename, output.evalue]
    kept = [value for kind, value in output.data.items() if kind not in NOT_COMPARED]
    return [value if isinstance(value, str) else json.dumps(value) for value in kept]


def sanitized(text: str) -> str:
    for pattern, replacement in SANITIZE.items():
        text = re.sub(pattern, replacement, text)
    return text


def is_compared(cell) -> bool:
    """Whether nbval compares something of the cell's outputs that could come out different."""
    options = dict(find_metadata_tags(cell.metadata)) | dict(find_comment_markers(cell.source))
    left = [re.sub(r"<[\w ]+>", "", sanitized(text)) for output in cell.outputs for text in texts(output)]
    return options.get("check", True) and not options.get("skip") and any(re.search(r"\w", text) for text in left)


def test_there_are_lessons_and_solutions():
    assert {path.parent.name for path in PATHS} == {"notebooks", "solutions"}


@each_notebook
def test_it_was_executed_from_top_to_bottom(path):
    counts = [cell.execution_count for cell in code_cells(read(path))]
    assert counts == list(range(1, len(counts) + 1)), "run make notebooks"


@each_notebook
def test_every_output_can_be_shown_on_a_page(path):
    """As text or as HTML: another kind, such as Markdown, reaches the book as its source."""
    kinds = {kind for cell in code_cells(read(path)) for output in cell.outputs for kind in output.get("data", {})}
    assert kinds <= {"text/plain", "text/html", "application/vnd.course.verdict+json"}


@each_notebook
def test_it_is_stored_clean(path):
    """As course run-notebooks stores it: no time stamps, no Python version, no front end's metadata."""
    notebook = read(path)
    assert store_outputs.clean(copy.deepcopy(notebook), path.stem) == notebook, "run make notebooks"


@each_notebook
def test_colab_opens_it_in_a_runtime_that_it_can_use(path):
    """The lessons on JAX ask for a TPU, by the name that Colab writes; the others for none, which is the CPU.

    Colab folds a cell with this metadata, and shows its title.
    """
    nbformat.validate(read(path))
    asked = read(path).metadata
    wanted = ("TPU", "V5E1") if path.stem[:2] in ("05", "07") else (None, None)
    assert (asked.get("accelerator"), asked["colab"].get("gpuType")) == wanted
    assert asked["colab"]["name"] == path.name
    set_up, *others = code_cells(read(path))
    assert set_up.metadata.cellView == "form" and set_up.source.startswith("# @title Set-up\n")
    assert not any("cellView" in cell.metadata for cell in others)


@each_notebook
def test_nothing_went_to_stderr(path):
    assert [output.text for output in outputs(read(path)) if output.get("name") == "stderr"] == []


@each_notebook
def test_a_cell_raises_where_it_says_so_and_nowhere_else(path):
    for cell in code_cells(read(path)):
        raised = any(output.output_type == "error" for output in cell.outputs)
        assert raised == (store_outputs.RAISES in cell.metadata.get("tags", [])), cell.source


@each_notebook
def test_no_path_of_a_machine_is_in_it(path):
    notebook = read(path)
    shown = [text for output in outputs(notebook) for text in texts(output)]
    for text in [*(cell.source for cell in notebook.cells), *shown]:
        assert not MACHINE_PATH.search(text), text


@each_notebook
def test_nine_in_ten_of_the_cells_with_output_are_compared(path):
    shown = [cell for cell in code_cells(read(path)) if cell.outputs]
    left_out = [cell.source for cell in shown if not is_compared(cell)]
    assert len(left_out) <= 0.1 * len(shown), f"{len(left_out)} of {len(shown)}:\n" + "\n---\n".join(left_out)


@each_notebook
def test_nine_in_ten_code_cells_have_prose_before_them(path):
    cells = read(path).cells
    pairs = zip(cells, cells[1:])  # the first cell is the title
    bare = [cell.source for before, cell in pairs if cell.cell_type == "code" and before.cell_type != "markdown"]
    assert len(bare) <= 0.1 * len(code_cells(read(path))), f"{len(bare)} cells:\n" + "\n---\n".join(bare)


@each_notebook
def test_it_opens_with_a_title_and_the_set_up_and_a_badge_only_for_a_fork(path):
    """A solution's badge opens the exercise that is made from it."""
    notebook = read(path)
    folder = {"notebooks": "notebooks", "solutions": "exercises"}[path.parent.name]
    title = notebook.cells[0]
    assert title.cell_type == "markdown" and title.source.startswith("# ")
    badges = re.findall(rf"{re.escape(BADGE)}([\w.-]+/[\w.-]+)/blob/[\w./-]+/{folder}/{path.name}\)", title.source)
    assert badges == ([NAMED.partition("@")[0]] if NAMED else []) and title.source.count(BADGE) == len(badges)
    first = code_cells(notebook)[0].source
    assert first.startswith(SET_UP) and "devices.simulate(" in first


def test_the_address_that_the_tree_names_is_its_remotes():
    if NAMED:  # else nothing is opened or installed from anywhere
        remote = fork_badges.remote(ROOT)
        assert remote in (None, NAMED.partition("@")[0]), "the fork has moved: run `course badges`"


def headings(source: str) -> list[tuple[int, str]]:
    """Of a markdown cell: each one's depth, and what JupyterLab and Colab let a link name, its blanks as hyphens."""
    found = re.findall(r"(?m)^(#+) (.+)$", source)
    return [(len(hashes), heading.strip().replace(" ", "-")) for hashes, heading in found]


def anchors(notebook) -> set[str]:
    return {name for cell in notebook.cells if cell.cell_type == "markdown" for _, name in headings(cell.source)}


@each_notebook
def test_every_link_leads_somewhere(path):
    notebook = read(path)
    for cell in notebook.cells:
        links = re.findall(r"\]\(([^()\s]+)\)", cell.source) if cell.cell_type == "markdown" else []
        for link in links:
            file, _, anchor = link.partition("#")
            if "://" not in link:
                assert (path.parent / file).exists(), link
            if anchor and "://" not in link:
                assert anchor in anchors(read(path.parent / file) if file else notebook), link


PATH = [*LESSONS]  # without the second notebooks


def last_links(path: Path) -> list[str]:
    """Where the last line with links to notebooks leads, in order."""
    prose = "\n".join(cell.source for cell in read(path).cells if cell.cell_type == "markdown")
    found = [re.findall(r"\]\(([^()\s]+\.ipynb)\)", line) for line in prose.splitlines()]
    return [links for links in found if links][-1]


@pytest.mark.parametrize("number", range(len(PATH)), ids=PATH)
def test_a_lesson_leads_to_its_exercise_and_its_neighbours_and_the_exercise_back_and_on(number):
    name, before, after = PATH[number], PATH[:number][-1:], PATH[number + 1 :][:1]
    second = [LESSONS[name].second.name] if LESSONS[name].second else []
    links = last_links(ROOT / "notebooks" / f"{name}.ipynb")
    assert links == [f"../exercises/{name}.ipynb", *(f"{other}.ipynb" for other in (*before, *second, *after))]
    for more in second:
        links = last_links(ROOT / "notebooks" / f"{more}.ipynb")
        assert links == [f"../exercises/{name}.ipynb", f"{name}.ipynb", *(f"{other}.ipynb" for other in after)]
    on = after or PATH[:1]  # the last exercise leads to the start
    assert last_links(ROOT / "exercises" / f"{name}.ipynb") == [f"../notebooks/{other}.ipynb" for other in (name, *on)]


def test_lesson_00_lists_the_lessons_with_the_readmes_words():
    row = r"(?m)^\| \[?(\d\db? [^|\]]+?)(?:\]\([^|]*\))? \| ([^|]+) \|"
    (table,) = [
        cell.source for cell in read(ROOT / "notebooks" / f"{PATH[0]}.ipynb").cells if "## The lessons" in cell.source
    ]
    assert re.findall(row, table) == re.findall(row, (ROOT / "README.md").read_text())
    assert re.findall(r"\]\((.+?)\)", table) == [f"{name}.ipynb" for name in [*NOTEBOOKS][1:]]


def is_ignored(cell) -> bool:
    """Whether nbval leaves out the cell's outputs, or a measured number in them."""
    options = dict(find_metadata_tags(cell.metadata)) | dict(find_comment_markers(cell.source))
    kept = [pattern for pattern, replacement in SANITIZE.items() if replacement in MEASURED]
    measured = any(re.search(pattern, text) for pattern in kept for output in cell.outputs for text in texts(output))
    return measured or not options.get("check", True)


def proves(cell) -> bool:
    return bool(re.search(r"^\s*assert\b|\bassert_\w+\(|^\s*check\(", cell.source, re.MULTILINE))


@each_notebook
def test_what_is_not_compared_stands_beside_an_assertion(path):
    """A number that differs between two right runs: something else about the same work must be proved there."""
    cells = code_cells(read(path))
    beside = [cells[max(0, place - 1) : place + 2] for place in range(len(cells))]
    bare = [cell.source for cell, near in zip(cells, beside) if is_ignored(cell) and not any(map(proves, near))]
    assert not bare


def proofs_by_section(notebook) -> dict[str, bool]:
    """Whether a cell below a heading, before the next one as high, proves something."""
    above, proved = [], {}
    for cell in notebook.cells:
        refuses = "raise AssertionError" in cell.source or "raises-exception" in cell.metadata.get("tags", ())
        if cell.cell_type == "markdown":
            for depth, name in headings(cell.source):
                above = [one for one in above if one[0] < depth] + [(depth, name)]
                proved.setdefault(name, False)
        elif proves(cell) or refuses:
            proved |= {name: True for _, name in above}
    return proved


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_what_a_recap_says_is_proved_is_proved_there(name):
    notebook = read(ROOT / "notebooks" / f"{name}.ipynb")
    recap = next(cell.source for cell in notebook.cells if "\n| claim | proved under |\n" in cell.source)
    table = recap.partition("| claim | proved under |\n")[2].partition("\n\n")[0]
    rows = {row: re.findall(r"\]\(#(.*?)\)(?=[,; |]|$)", row) for row in table.splitlines()[1:]}
    proved = proofs_by_section(notebook)
    assert rows and not [row for row, links in rows.items() if not links or not all(proved[link] for link in links)]


@each_notebook
def test_what_a_cell_draws_or_measures_is_shown(path):
    """A notebook shows the value of a cell's last line alone."""
    for cell in code_cells(read(path)):
        *others, _ = ast.parse(cell.source).body
        calls = [one.value.func for one in others if isinstance(one, ast.Expr) and isinstance(one.value, ast.Call)]
        lost = [
            name
            for name in map(ast.unparse, calls)
            if name.startswith(("show.", "views.", "compare.compare", "measure."))
        ]
        assert not lost, cell.source


def test_the_sanitizing_is_seen_through():
    """A cell whose every number is sanitized away counts as not compared."""
    cell = nbformat.v4.new_code_cell("1", outputs=[nbformat.v4.new_output("stream", text="  1.52x\n")])
    assert not is_compared(cell)
    cell.outputs[0].text = "faster 1.52x"
    assert is_compared(cell)
    cell.metadata["tags"] = ["nbval-ignore-output"]
    assert not is_compared(cell)
