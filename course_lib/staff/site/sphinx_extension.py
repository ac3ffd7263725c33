"""What the site adds to Sphinx. Needs Sphinx.

Formulas as MathML, which browsers draw by themselves; types that link to their own module's classes; no empty headers.
"""

import re

from docutils import nodes
from docutils.utils.math import MathError, latex2mathml
from sphinx.addnodes import pending_xref
from sphinx.errors import SphinxError
from sphinx.writers.html5 import HTML5Translator

_DIGITS = re.compile(r"\\frac\s*(\d)(\d)")  # TeX takes one digit each, docutils all of them as one number


def setup(app) -> dict:
    """Sphinx calls this."""
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    app.add_node(nodes.entry, override=True, html=(_visit_cell, HTML5Translator.depart_entry))
    app.connect("doctree-read", _exact)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}


def _exact(app, doctree) -> None:
    """A type in a signature leads to the class of its own module, or nowhere: two modules may each have a Run."""
    for node in doctree.findall(pending_xref):
        if node.get("refdomain") == "py":
            node.attributes.pop("refspecific", None)  # it lets Sphinx search all modules


def _visit_cell(writer, node) -> None:
    """A table's cell. An empty header heads nothing, so it becomes a plain cell."""
    HTML5Translator.visit_entry(writer, node)
    if not node.astext():
        writer.body[-1] = writer.body[-1].replace("<th", "<td", 1)
        writer.context[-1] = writer.context[-1].replace("th>", "td>")


def _inline(writer, node) -> None:
    writer.body.append(mathml(node.astext(), block=False))
    raise nodes.SkipNode


def _block(writer, node) -> None:
    writer.body.append(f'<div class="math" tabindex="0">{mathml(node.astext(), block=True)}</div>')
    raise nodes.SkipNode


def mathml(formula: str, block: bool) -> str:
    """A formula in LaTeX as MathML. Raises SphinxError for LaTeX that docutils does not know."""
    known = _DIGITS.sub(r"\\frac{\1}{\2}", formula).replace(r"\dots", r"\ldots")  # as docutils knows them
    try:
        return latex2mathml.tex2mathml(known, as_block=block)
    except MathError as error:
        raise SphinxError(f"the formula {formula!r}: {error}") from None
