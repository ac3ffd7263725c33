"""What stock Keras does under each strategy: one stored page. Standard library only; shown in notebooks/03.

tests/test_support_matrix.py executes every feature and, with --write, draws this page from the verdicts.
"""

from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent


@dataclass(frozen=True, repr=False)
class SupportPage:
    """Shows as aligned text in a terminal and as Markdown tables with links in a notebook."""

    text: str
    markdown: str

    def __repr__(self) -> str:
        return self.text

    def _repr_markdown_(self) -> str:
        return self.markdown


def read(folder: Path = FOLDER) -> SupportPage:
    """The stored page: FOLDER/page.txt and FOLDER/page.md, without the newline that ends a file."""
    text, markdown = ((folder / name).read_text(encoding="utf-8") for name in ("page.txt", "page.md"))
    return SupportPage(text.removesuffix("\n"), markdown.removesuffix("\n"))
