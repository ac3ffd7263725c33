"""The report page: complete, readable without pictures, and in need of nothing else."""

import base64
from html.parser import HTMLParser

import pytest

from course_lib import report, show
from course_lib.errors import CourseError
from course_lib.table import Table

FIGURE = show.lines({"loss": ([1, 2], [3, 1])}, "epoch", "loss", "The loss falls from 3 to 1.")
TABLE = Table(("digit", "right"), [("seven", 35), ("eight", 36)], "Right answers by digit.")
CHECKS = (report.Check("4 replicas equal 1", True, "off by 0"), report.Check("98% right", False, "97.2% of 360"))
SECTIONS = {"Data": ["1,437 <digits> & more", {"test images": 360}], "Training": [FIGURE, TABLE]}


class Reader(HTMLParser):
    """What a browser would find: tags with their attributes, and text."""

    void = ("meta", "img", "br")

    def __init__(self, text):
        super().__init__()
        self.tags, self.words, self._open = [], [], []
        self.feed(text)
        assert not self._open, f"never closed: {self._open}"

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self._open += [] if tag in self.void else [tag]

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        self.words += [data] if "style" not in self._open else []

    def all(self, name):
        return [attributes for tag, attributes in self.tags if tag == name]

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())


@pytest.fixture(scope="module")
def text():
    return report.page("Digits on 4 replicas", "A short run.", SECTIONS, CHECKS)


def test_says_everything_in_words(text):
    read = Reader(text).text
    for part in ("Digits on 4 replicas", "A short run.", "1,437 <digits> & more", "test images", "360", "seven", "35"):
        assert part in read
    assert FIGURE.caption in read and TABLE.caption in read


def test_a_failed_check_is_counted_and_called_failed(text):
    read = Reader(text).text
    assert "Checks: 1 of 2 passed" in read
    assert "passed: 4 replicas equal 1" in read and "off by 0" in read
    assert "FAILED: 98% right" in read and "97.2% of 360" in read
    assert [item["class"] for item in Reader(text).all("li")] == ["passed", "failed"]
    assert ".checks .failed { border-color" in text.split("</style>")[0]


def test_every_picture_is_inside_and_has_words(text):
    (picture,) = Reader(text).all("img")
    kind, data = picture["src"].split(",")
    assert kind == "data:image/svg+xml;base64" and base64.b64decode(data).startswith(b"<svg ")
    assert picture["alt"] == FIGURE.caption


def test_titles_headings_and_facts_are_escaped():
    found = report.page("a < b", "c & d", {"e < f": [{"g < h": "i & j"}]}, [report.Check("k < l", True, "m & n")])
    assert "<title>a &lt; b</title>" in found and "<h1>a &lt; b</h1>\n<p>c &amp; d</p>" in found
    assert '<h2>e &lt; f</h2>\n<div class="wide"><table><tr><th scope="row">g &lt; h</th><td>i &amp; j</td>' in found
    assert "passed: k &lt; l</strong><br>m &amp; n</li>" in found
    assert "Checks" not in report.page("title", "summary", {})


def test_needs_no_network_and_runs_no_script(text):
    reader = Reader(text)
    assert not any(reader.all(tag) for tag in ("script", "link", "iframe"))
    assert all(attributes["src"].startswith("data:") for _, attributes in reader.tags if "src" in attributes)
    assert "http:" not in text and "https:" not in text
    (rule,) = [meta["content"] for meta in reader.all("meta") if "http-equiv" in meta]
    assert rule.startswith("default-src 'none'")


def test_fits_a_phone(text):
    reader = Reader(text)
    assert {"name": "viewport", "content": "width=device-width, initial-scale=1"} in reader.all("meta")
    assert len(reader.all("table")) == sum(div.get("class") == "wide" for div in reader.all("div")), (
        "a wide table scrolls by itself"
    )


def test_the_same_run_gives_the_same_page(text):
    assert report.page("Digits on 4 replicas", "A short run.", SECTIONS, CHECKS) == text


def test_what_cannot_be_shown_is_refused_in_one_line():
    with pytest.raises(CourseError, match="section 'Data' holds a part of type int: a part is text, a table.Table"):
        report.page("title", "summary", {"Data": [360]})
    with pytest.raises(CourseError, match="2 headers, and its row 2 has 1 cells"):
        Table(("digit", "right"), [("seven", 35), ("eight",)], "Right answers.")
