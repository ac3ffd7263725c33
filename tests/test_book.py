"""The site: no dead link, nothing fetched, no answer revealed; and what Chromium and axe say to each page."""

import fcntl
import functools
import html
import importlib.util
import json
import os
import pickle
import re
import shutil
import threading
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

import pytest
from axe import axe_findings

from course_lib import views
from course_lib.errors import CourseError
from course_lib.lessons import LESSONS, NOTEBOOKS
from course_lib.staff.site import build_site, reference, source_pages

CHECKOUT = Path(__file__).parents[1]
CI = os.environ.get("CI") == "true"
CHROMIUM = shutil.which("chromium")
FLAGS = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking"
FLAGS += " --disable-component-update --disable-sync"
PARTS = 6  # of the pages, for browsers side by side
# The first lines of code cells that a desk's window does not show whole.
CLIPPED = """[...document.querySelectorAll(".cell_input pre")]
  .filter(code => code.scrollWidth > code.clientWidth + 1).map(code => code.textContent.slice(0, 40))"""
# Formulas on lines of their own that do not stand in the middle.
OFF_CENTRE = """[...document.querySelectorAll("div.math")].filter(line => {
  const parts = [...line.querySelectorAll("math > *")].map(part => part.getBoundingClientRect());
  const { left, right } = line.getBoundingClientRect();
  const before = Math.min(...parts.map(part => part.left)) - left;
  const after = right - Math.max(...parts.map(part => part.right));
  return Math.abs(before - after) > 8;
}).map(line => line.textContent.slice(0, 40))"""
PHONE, DESK = {"width": 390, "height": 844}, {"width": 1280, "height": 900}


def lacks(*modules: str) -> str:
    return ", ".join(name for name in modules if importlib.util.find_spec(name) is None)


NO_BOOK = lacks(*build_site.NEEDED)
NO_BROWSER = lacks("playwright", "axe_playwright_python") or ("" if CHROMIUM else "chromium")
needs_sphinx = pytest.mark.skipif(bool(NO_BOOK) and not CI, reason=f"the extra book is not installed: no {NO_BOOK}")
needs_browser = pytest.mark.skipif(bool(NO_BROWSER) and not CI, reason=f"the browser's tests need {NO_BROWSER}")
pytestmark = pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")  # Sphinx', for the makers of extensions


def needs_book(test):
    """The whole site, which a minute of two cores builds."""
    return needs_sphinx(pytest.mark.slow(test))


def in_browser(test):
    return needs_book(needs_browser(test))


class Page(HTMLParser):
    """What a page names: ids, links, what it loads, its headings, its pictures' alt texts, tables, and its text."""

    def __init__(self, path: Path):
        super().__init__()
        self.ids, self.links, self.loads, self.headings = set(), [], [], []
        self.alts, self.tables, self.text = [], [], []
        self.feed(path.read_text())

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.ids |= {given[key] for key in ("id", "name") if given.get(key)}
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])
        source = given.get("href") if tag == "link" else given.get("src")
        if source and tag in ("link", "script", "img", "iframe", "source", "video", "audio"):
            self.loads.append(source)
        if re.fullmatch(r"h[1-6]", tag):
            self.headings.append(int(tag[1]))
        if tag == "img":
            self.alts.append(" ".join((given.get("alt") or "").split()))
        if tag == "table":
            self.tables.append(0)
        if tag == "th" and self.tables:
            self.tables[-1] += 1

    def handle_data(self, data):
        self.text.append(data)


@pytest.fixture(scope="session")
def book(tmp_path_factory) -> build_site.Book:
    if NO_BOOK:
        pytest.fail(f"the extra book is not installed: no {NO_BOOK}")
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:  # its parent is the folder of all workers of this run
        shared = shared.parent
    with open(shared / "book.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one worker builds, and the others wait for it
        made = shared / "book.pickle"
        if not made.exists():
            made.write_bytes(pickle.dumps(build_site.build(CHECKOUT, shared / "book" / "site")))
        return pickle.loads(made.read_bytes())


@pytest.fixture(scope="session")
def site(book) -> dict[Path, Page]:
    """Every page by its path in the site."""
    root = book.page.parent
    paths = [path for path in sorted(root.rglob("*.html")) if "_static" not in path.parts]
    return {path.relative_to(root): Page(path) for path in paths}


@needs_book
def test_every_lesson_exercise_and_taught_module_has_a_page(site, book):
    notebooks = [path for name in ("notebooks", "exercises") for path in (CHECKOUT / name).glob("*.ipynb")]
    wanted = {path.relative_to(CHECKOUT).with_suffix(".html") for path in notebooks}
    wanted |= {Path("reference", f"{name}.html") for name in reference.lessons_of_modules(CHECKOUT)}
    assert wanted <= site.keys() and len(notebooks) == len(NOTEBOOKS) + len(LESSONS)
    assert book.pages == len(site)


@needs_book
def test_links_and_anchors_inside_the_site_lead_somewhere(site, book):
    root = book.page.parent
    broken = []
    for path, page in site.items():
        for link in {*page.links, *page.loads}:
            if urlsplit(link).scheme or link.startswith("//"):
                continue
            address, fragment = urldefrag(link)
            target = (root / path.parent / unquote(urlsplit(address).path)).resolve() if address else root / path
            known = site.get(target.relative_to(root)) if target.suffix == ".html" and target.is_file() else None
            if not target.is_file() or known and fragment and unquote(fragment) not in known.ids:
                broken.append(f"{path}: {link}")
    assert broken == []


@needs_book
def test_nothing_is_loaded_from_another_machine(site, book):
    remote = [
        f"{path}: {source}" for path, page in site.items() for source in page.loads if re.match(r"(\w+:)?//", source)
    ]
    assert remote == []
    styles = [
        path
        for path in book.page.parent.rglob("*.css")
        if re.search(r"(@import|url\()\s*[\"']?(https?:)?//", path.read_text())
    ]
    assert styles == []


@needs_book
def test_the_site_is_small(book):
    files = [path for path in book.page.parent.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) == book.size_bytes < 30e6


@needs_book
def test_no_answer_is_told(book):
    """Lines of a solution that its exercise lacks are on no page of an exercise, nor in the search index."""
    index = (book.page.parent / "searchindex.js").read_text()
    assert "BEGIN SOLUTION" not in index
    for path in sorted((CHECKOUT / "solutions").glob("*.ipynb")):
        text = " ".join(" ".join(Page(book.page.parent / "exercises" / f"{path.stem}.html").text).split())
        assert "SOLUTION" not in text
        blank = (CHECKOUT / "exercises" / path.name).read_text()
        for cell in json.loads(path.read_text())["cells"]:
            for answer in re.findall(r"### BEGIN SOLUTION\n(.*?)### END SOLUTION", "".join(cell["source"]), re.DOTALL):
                own = [line.strip() for line in answer.splitlines() if len(line.strip()) > 20]
                own = [line for line in own if json.dumps(line)[1:-1] not in blank]
                assert [line for line in own if " ".join(line.split()) in text] == []


@needs_book
def test_pages_can_be_heard(site):
    """One h1 and no level left out; every picture has alt text, every table says what its columns or rows are."""
    for path, page in site.items():
        assert page.headings.count(1) == 1, path
        assert all(lower <= upper + 1 for upper, lower in zip(page.headings, page.headings[1:])), (path, page.headings)
        assert all(page.alts), path
        assert all(page.tables), path


@needs_book
def test_a_picture_keeps_the_alt_text_of_its_output(site):
    cells = json.loads((CHECKOUT / "notebooks" / "02_data_parallelism.ipynb").read_text())["cells"]
    outputs = [output["data"] for cell in cells for output in cell.get("outputs", ()) if "data" in output]
    pages = ["".join(data.get("text/html", "")) for data in outputs]
    alts = [html.unescape(alt) for page in pages for alt in re.findall('<img alt="(.*?)"', page)]
    assert len(alts) > 3 and set(alts) <= set(site[Path("notebooks/02_data_parallelism.html")].alts)


@needs_book
def test_a_view_is_a_picture_and_a_table(site):
    """Its widgets need a kernel; lesson 02's view of the ring stays whole without."""
    text = " ".join(" ".join(site[Path("notebooks/02_data_parallelism.html")].text).split())
    assert "Ring all-reduce of 840 B on each of 4 workers" in text
    assert "worker 0 630 630 1,260" in text
    assert "Your progress: 0 of" in " ".join(site[Path("notebooks/00_start_here.html")].text)


@needs_sphinx
def test_broken_links_and_a_skipped_heading_stop_the_build(tmp_path):
    copy = _small_checkout(
        tmp_path / "course", "See [that](#No-such-heading) and [this](02_gone.ipynb).\n\n### Too deep"
    )
    with pytest.raises(CourseError) as raised:
        build_site.build(copy, tmp_path / "site")
    assert all(part in str(raised.value) for part in ("No-such-heading", "02_gone", "H1 to H3"))
    assert not (tmp_path / "site").exists()


@needs_sphinx
def test_a_folder_that_holds_something_else_is_left_alone(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(CourseError, match="holds no book"):
        build_site.build(CHECKOUT, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def _small_checkout(folder: Path, markdown: str) -> Path:
    """A course of one lesson with one paragraph."""
    for name in ("notebooks/images", "exercises"):
        (folder / name).mkdir(parents=True)
    cell = {"cell_type": "markdown", "metadata": {}, "source": f"# Lesson\n\n{markdown}", "id": "a"}
    code = {"cell_type": "code", "metadata": {}, "source": "1", "id": "b", "outputs": [], "execution_count": 1}
    for path in (folder / "notebooks" / "01_a.ipynb", folder / "exercises" / "01_a.ipynb"):
        own = cell if path.parent.name == "notebooks" else {**cell, "source": "# Exercise"}
        path.write_text(json.dumps({"cells": [own, code], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}))
    (folder / "README.md").write_text("# Course\n")
    (folder / "TROUBLESHOOTING.md").write_text("# Help\n")
    (folder / "CONTRIBUTING.md").write_text("# Contributing\n")
    (folder / "TEACHING.md").write_text("# Teaching\n")
    (folder / "LICENSE").write_text("none\n")
    return folder


def test_badges_and_links_to_code_become_links_that_a_page_can_have():
    source = "[![Open in Colab](https://colab.example/badge.svg)](https://x/y) and [`a`](../course_lib/tpu/chips.py)"
    cells = [{"cell_type": "markdown", "metadata": {}, "source": source}]
    page = source_pages.notebook_page({"cells": cells}, Path("a.ipynb"))
    assert page["cells"][0]["source"] == "[Open in Colab](https://x/y) and [`a`](../reference/course_lib.tpu.chips.rst)"


def test_a_picture_without_alt_text_is_refused():
    output = {"output_type": "display_data", "data": {"image/png": ""}, "metadata": {}}
    cells = [{"cell_type": "code", "metadata": {}, "source": "", "outputs": [output]}]
    with pytest.raises(CourseError, match="a.ipynb, cell 1"):
        source_pages.notebook_page({"cells": cells}, Path("a.ipynb"))


def test_what_needs_a_kernel_or_a_program_is_left_out():
    data = {
        "text/html": "<p>still</p>",
        "application/vnd.jupyter.widget-view+json": {},
        "application/vnd.course.verdict+json": {},
    }
    cells = [
        {
            "cell_type": "code",
            "metadata": {},
            "source": "",
            "outputs": [{"output_type": "display_data", "data": data, "metadata": {}}],
        }
    ]
    assert source_pages.notebook_page({"cells": cells}, Path("a.ipynb"))["cells"][0]["outputs"][0]["data"] == {
        "text/html": "<p>still</p>"
    }


def test_the_reference_keeps_tables_as_typed():
    text = reference.as_rst("Take `a` and *b*.\n\n    a  an array\n    b  a number\n")
    assert r"Take \ ``a``\  and \*b\*." in text
    assert ".. code-block:: text\n\n       a  an array\n       b  a number" in text


@needs_book
def test_the_reference_shows_what_a_module_offers(site):
    text = {name: " ".join("".join(page.text).split()) for name, page in site.items()}
    collectives = text[Path("reference/course_lib.collectives.html")]
    assert "ring_all_reduce(buffers: Sequence[ndarray]) → tuple[list[ndarray], Network]" in collectives
    assert "Imported by lessons 02, 09" in collectives and "buffers one (n,) array per worker" in collectives
    assert "class LocalCluster(job: Job, " in text[Path("reference/course_lib.cluster.html")]
    assert "metrics: Mapping[str, float] = ...)" in text[Path("reference/course_lib.compare.html")]


@pytest.fixture(scope="module")
def served(book):
    """The site at a loopback address."""
    handler = functools.partial(_Quiet, directory=book.page.parent)
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def browser():
    if NO_BROWSER:
        pytest.fail(f"no {NO_BROWSER}")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS.split())
        yield chromium
        chromium.close()


@pytest.fixture
def tab(browser):
    """Opens a tab whose console errors, and requests that leave this machine, are collected in its `wrong`."""
    contexts = []

    def opened(scheme: str = "light", size: dict = DESK):
        contexts.append(browser.new_context(viewport=size, color_scheme=scheme, reduced_motion="reduce"))
        page = contexts[-1].new_page()
        page.set_default_timeout(60_000)
        page.wrong = []
        page.on("console", lambda message: message.type == "error" and page.wrong.append(message.text))
        page.on("pageerror", lambda error: page.wrong.append(str(error)))
        page.on("request", lambda request: _is_local(request.url) or page.wrong.append(request.url))
        return page

    yield opened
    for context in contexts:
        context.close()


def _is_local(address: str) -> bool:
    parts = urlsplit(address)
    return parts.scheme in ("file", "data", "blob") or parts.hostname == "127.0.0.1"


# Nine tenths of axe's time goes into the colours of code, token by token: of those that look alike three stay. Of a
# single letter it judges none.
THREE_OF_EACH_TOKEN = """() => {
  const seen = {};
  const ground = (element) => {
    const own = getComputedStyle(element).backgroundColor;
    return own !== "rgba(0, 0, 0, 0)" || !element.parentElement ? own : ground(element.parentElement);
  };
  for (const token of document.querySelectorAll(".highlight span")) {
    const { color, opacity, fontSize, fontWeight } = getComputedStyle(token);
    const look = [color, opacity, fontSize, fontWeight, ground(token)].join();
    const stays = token.textContent.trim().length > 1 && (seen[look] ?? 0) < 3;
    token.style.visibility = stays ? "visible" : "hidden";
    if (stays) seen[look] = (seen[look] ?? 0) + 1;
  }
}"""


@in_browser
@pytest.mark.parametrize("part", range(PARTS))
def test_pages_opened_as_files_load_clean_fit_a_phone_and_can_be_used_by_all(site, book, tab, part):
    """Dark on a phone, light on a desk: no console error, no code cut, no scrolling sideways, no finding of axe."""
    page, found = tab(), []
    for path in list(site)[part::PARTS]:
        page.set_viewport_size(DESK)
        page.emulate_media(color_scheme="dark")
        page.goto((book.page.parent / path).as_uri())
        found += [f"{path}: code is cut at {text!r}" for text in page.evaluate(CLIPPED)]
        found += [f"{path}: a formula stands aside: {text!r}" for text in page.evaluate(OFF_CENTRE)]
        page.set_viewport_size(PHONE)
        page.reload()  # the theme makes what scrolls focusable when a page is loaded
        width = page.evaluate("Math.max(document.documentElement.scrollWidth, document.body.scrollWidth)")
        found += [f"{path}: {width} pixels wide"] if width > PHONE["width"] else []
        page.evaluate(THREE_OF_EACH_TOKEN)
        found += [f"{path}, dark, {finding}" for finding in axe_findings(page)]
        page.set_viewport_size(DESK)
        page.emulate_media(color_scheme="light")
        page.reload()
        page.evaluate(THREE_OF_EACH_TOKEN)
        found += [f"{path}, light, {finding}" for finding in axe_findings(page)]
    assert found + page.wrong == []


@in_browser
@pytest.mark.parametrize("way", ["served", "file"])
def test_search_finds_the_all_reduce_in_lesson_02(book, served, tab, way):
    page = tab()
    root = served if way == "served" else book.page.parent.as_uri()
    page.goto(f"{root}/search.html?q=all-reduce")
    link = page.locator("#search-results li a[href*='02_data_parallelism']").first
    link.wait_for()
    excerpt = link.locator("xpath=../p[contains(@class, 'context')]")
    assert "all-reduce" in excerpt.inner_text().lower()  # waits for it
    assert axe_findings(page) == []
    page.goto(link.evaluate("link => link.href"))  # a click while results are still being added may miss
    assert "Data parallelism" in page.locator("h1").inner_text()
    assert page.wrong == []


@in_browser
def test_dark_follows_the_system_and_the_button_and_stays(book, tab):
    def lightness(page) -> int:
        colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
        return sum(map(int, re.findall(r"\d+", colour)[:3])) // 3

    light, dark = tab("light"), tab("dark")
    for page in (light, dark):
        page.goto(book.page.as_uri())
    assert lightness(dark) < 60 < 200 < lightness(light)
    light.locator(".theme-switch-button").first.click()
    light.locator(".theme-change-button[data-mode=dark]").first.click()
    light.wait_for_function("document.documentElement.dataset.theme == 'dark'")
    assert lightness(light) < 60
    light.mouse.move(
        0, 0
    )  # half a second over the button the theme's tooltip appears, which axe finds outside of all landmarks
    light.reload()
    assert light.evaluate("document.documentElement.dataset.theme") == "dark" and lightness(light) < 60
    assert axe_findings(light) + light.wrong + dark.wrong == []


VIEWS = {
    "all_reduce": "02_data_parallelism",
    "staleness": "04_parameter_server",
    "pipeline": "06_model_parallelism",
    "recovery": "03_multi_worker",
    "zero_stages": "07_tensor_parallelism_and_sharding",
    "formats": "09b_mixed_precision_sums_memory_float8",
    "strategy": "10_choosing_a_strategy",
    "memory": "10_choosing_a_strategy",
}
# Where each control stands after a key, and how long the page took to follow.
PRESSED = """select => {
  const began = performance.now();
  select.selectedIndex += select.selectedIndex ? -1 : 1;
  select.dispatchEvent(new Event("change"));
  document.body.offsetHeight;
  return performance.now() - began;
}"""


def test_every_view_stands_in_a_lesson():
    assert VIEWS.keys() == set(views.__all__)


@in_browser
@pytest.mark.parametrize("name", VIEWS)
def test_a_view_lives_without_a_kernel(book, tab, name, capsys):
    """Opened as a file: each control, moved by a key, leads to the state that the library itself draws."""
    page, explorer = tab(), getattr(views, name)()
    page.goto((book.page.parent / "notebooks" / f"{VIEWS[name]}.html").as_uri())
    view = page.locator(f".course-view[data-view={name}][data-ready]")
    view.wait_for()
    offered, _ = explorer.drawn_ahead()
    start = [view.get_by_label(one.label, exact=True) for one in explorer.controls.values()]
    stored = json.loads(view.get_attribute("data-start"))
    assert [one.evaluate("select => select.selectedOptions[0].text") for one in start] == list(stored.values())
    for control in explorer.controls.values():
        select = view.get_by_label(control.label, exact=True)
        if select.locator("option:enabled").count() == 1:
            continue
        before = view.inner_text()
        select.focus()
        page.keyboard.press("ArrowDown" if select.evaluate("select => !select.selectedIndex") else "ArrowUp")
        assert view.inner_text() != before, control.label
        at = [view.get_by_label(one.label, exact=True).input_value() for one in explorer.controls.values()]
        taken = {one: offered[one][int(place)] for one, place in zip(explorer.controls, at)}
        drawn = explorer.view(**taken)
        assert view.locator("figcaption").inner_text() == drawn.caption == view.get_by_role("status").text_content()
        assert view.locator("tbody tr").count() == len(drawn.rows)
        assert view.locator("img").get_attribute("alt") == drawn.caption
    first = view.locator("select").first
    took = sorted(first.evaluate(PRESSED) for _ in range(9))
    with capsys.disabled():
        print(f" {name}: {took[4]:.1f} ms", end="")
    assert axe_findings(page) + page.wrong == []


@in_browser
def test_a_view_plays_to_its_last_state_and_stops(book, tab):
    page = tab()
    page.clock.install()
    page.goto((book.page.parent / "notebooks" / "02_data_parallelism.html").as_uri())
    view = page.locator(".course-view[data-ready]")
    view.wait_for()
    view.get_by_role("button", name="Play rounds so far").press("Enter")
    page.clock.run_for(10_000)
    assert "after 6 of 6 rounds" in view.locator("figcaption").inner_text()
    view.get_by_role("button", name="Play rounds so far").wait_for()


@in_browser
def test_paper_cuts_no_line(book, tab):
    page = tab()
    page.goto((book.page.parent / "notebooks" / "03_multi_worker.html").as_uri())
    page.emulate_media(media="print")
    cut = "[...document.querySelectorAll('pre')].filter(text => text.scrollWidth > text.clientWidth + 1).length"
    assert page.evaluate(cut) == 0 and not page.locator(".view-controls").first.is_visible()


@needs_book
def test_a_footer_says_what_is_so(site):
    assert all("Apache License 2.0" in " ".join(page.text) for page in site.values())
    assert not any("not set" in " ".join(page.text[-40:]) for page in site.values())


@in_browser
def test_a_formula_is_drawn(book, tab):
    """As MathML: it takes room, and no text of LaTeX is left."""
    page = tab()
    page.goto((book.page.parent / "notebooks" / "02_data_parallelism.html").as_uri())
    assert page.locator("math").count() > 5
    assert page.locator("math mfrac, math mi").first.bounding_box()["width"] > 0
    assert "\\frac" not in page.locator("main").inner_text()
