"""A table as HTML whose headers a screen reader can follow. Standard library only; used by explore and progress."""

from collections.abc import Iterable, Sequence
from html import escape


def as_html(headers: Sequence[str], rows: Iterable[Sequence[object]], caption: str = "") -> str:
    """One header per column; the first cell of a row names it. Cells are text, whatever is in them."""
    head = "".join(f'<th scope="col">{escape(str(header))}</th>' for header in headers)
    body = "".join(
        f'<tr><th scope="row">{escape(str(first))}</th>'
        + "".join(f"<td>{escape(str(cell))}</td>" for cell in rest)
        + "</tr>"
        for first, *rest in rows
    )
    above = f"<caption>{escape(caption)}</caption>" if caption else ""
    return f"<table>{above}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
