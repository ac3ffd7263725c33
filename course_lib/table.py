"""Rows under headers, as plain text and as HTML that a screen reader can follow. Standard library only."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from course_lib.errors import CourseError


@dataclass(frozen=True, repr=False)
class Table:
    """Shows as text in a terminal and as HTML in a notebook.

    headers  one per column
    rows     one cell per header; the first cell names the row. Cells are shown as str() shows them
    caption  says what the rows show; "" for none
    left     indices of the columns that are aligned left; the others are aligned right
    Raises   CourseError for a row with more or fewer cells than headers
    """

    headers: Sequence[str]
    rows: Sequence[Sequence[object]]
    caption: str = ""
    left: Sequence[int] = (0,)

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", tuple(self.rows))  # a zip could be read only once
        odd = [number for number, row in enumerate(self.rows, 1) if len(row) != len(self.headers)]
        if odd:
            raise CourseError(
                f"the table {self.caption!r} has {len(self.headers)} headers, and its row {odd[0]} has "
                f"{len(self.rows[odd[0] - 1])} cells: give every row one cell per header."
            )

    def __repr__(self) -> str:
        cells = [[str(cell) for cell in row] for row in (self.headers, *self.rows)]
        widths = [max(map(len, column)) for column in zip(*cells)]
        aligned = (
            "  ".join(
                cell.ljust(width) if place in self.left else cell.rjust(width)
                for place, (cell, width) in enumerate(zip(row, widths))
            ).rstrip()
            for row in cells
        )
        return "\n".join([self.caption, *aligned] if self.caption else aligned)

    def _repr_html_(self) -> str:
        """One header per column and row; an empty header is a plain cell, which no screen reader announces."""
        head = "".join(_header(str(text), "col") for text in self.headers)
        body = "".join(
            "<tr>" + _header(str(first), "row") + "".join(f"<td>{escape(str(cell))}</td>" for cell in rest) + "</tr>"
            for first, *rest in self.rows
        )
        above = f"<caption>{escape(self.caption)}</caption>" if self.caption else ""
        return f"<table>{above}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _header(text: str, scope: str) -> str:
    return f'<th scope="{scope}">{escape(text)}</th>' if text else "<td></td>"
