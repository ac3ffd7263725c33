"""The one table: text that lines up, HTML that a screen reader can follow."""

import pytest

from course_lib.errors import CourseError
from course_lib.table import Table


def test_text_lines_up():
    table = Table(["name", "ratio"], [["one", 1], ["eleven", 12.5]])
    assert repr(table) == str(table) == "name    ratio\none         1\neleven   12.5"
    assert repr(Table(["name", "is"], [["one", "odd"]], left=(0, 1))) == "name  is\none   odd"


def test_a_caption_stands_above():
    assert repr(Table(("a", "b"), [("x", 1)], "Numbers.")) == "Numbers.\na  b\nx  1"
    plain = Table(("a", "b"), [("x", 1)])
    assert plain.caption == "" and "caption" not in plain._repr_html_()


def test_html_names_columns_and_rows_and_escapes_cells():
    html = Table(["", "<b>"], [["one", "1 < 2"], ["", 3]], caption="A & B")._repr_html_()
    assert '<caption>A &amp; B</caption><thead><tr><td></td><th scope="col">&lt;b&gt;</th></tr></thead>' in html
    assert '<tr><th scope="row">one</th><td>1 &lt; 2</td></tr><tr><td></td><td>3</td></tr>' in html


def test_rows_that_can_be_read_once_are_kept():
    table = Table(("a", "b"), zip("xy", (1, 2)))
    assert repr(table) == repr(table) == "a  b\nx  1\ny  2"


def test_a_row_of_another_length_is_one_line():
    with pytest.raises(CourseError, match="has 2 headers, and its row 1 has 1"):
        Table(("a", "b"), [("x",)], "Numbers.")
