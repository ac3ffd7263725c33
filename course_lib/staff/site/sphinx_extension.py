"""What the site adds to Sphinx. Needs Sphinx.

Formulas as MathML, which browsers draw by themselves; docstrings in the library's own style; no empty headers.
"""

import functools
import inspect
import re

from docutils import nodes
from docutils.utils.math import MathError, latex2mathml
from sphinx.errors import SphinxError
from sphinx.writers.html5 import HTML5Translator

from course_lib.staff.site.reference import as_rst

_DIGITS = re.compile(r"\\frac\s*(\d)(\d)")  # TeX takes one digit each, docutils all of them as one number
_THOUSANDS = re.compile(r"(\d+)\{,\}(\d{3})")


def setup(app) -> dict:
    """Sphinx calls this."""
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    app.add_node(nodes.entry, override=True, html=(_visit_cell, HTML5Translator.depart_entry))
    app.connect("autodoc-process-docstring", _read)
    app.connect("autodoc-skip-member", _is_left_out)
    app.connect("autodoc-process-signature", _parsed)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}


def _read(app, what, name, thing, options, lines: list[str]) -> None:
    """A docstring, from the library's style to reStructuredText."""
    lines[:] = as_rst("\n".join(lines)).splitlines()


def _is_left_out(app, what, name, thing, skip, options) -> bool | None:
    """A module's constants and a class' fields, which their own docstrings tell of."""
    kinds = (type, property, functools.cached_property, classmethod, staticmethod)
    return None if inspect.isroutine(thing) or isinstance(thing, kinds) else True


def _parsed(app, what, name, thing, options, signature, returned) -> tuple:
    """A default that is made afresh each time, as something that Sphinx can parse."""
    return signature and signature.replace("<factory>", "..."), returned


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
    known = _THOUSANDS.sub(r"\\text{\1,\2}", known)  # one number, without a list's space
    try:
        return latex2mathml.tex2mathml(known, as_block=block)
    except MathError as error:
        raise SphinxError(f"the formula {formula!r}: {error}") from None
