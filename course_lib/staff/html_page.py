"""Pages for learners and examiners, from the templates beside. Needs Jinja2.

Any text of a result may be a learner's, and so hostile: whatever a template shows becomes one plain line, escaped. A
page loads nothing and runs no script.
"""

import base64
import hashlib
from pathlib import Path

from course_lib.errors import CourseError
from course_lib.staff.grade.results import counted, plain_block, plain_line, state

try:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup
except ImportError:
    raise CourseError("pages need the jinja2 package: `pip install jinja2`") from None

TEMPLATES = Path(__file__).parent / "templates"
STYLE = (TEMPLATES / "page.css").read_text(encoding="utf-8")
_STYLE_HASH = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
POLICY = f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; base-uri 'none'; form-action 'none'"


def page(template: str, **values: object) -> str:
    """A whole page: it refers to no other file; write it as UTF-8."""
    return _ENVIRONMENT.get_template(template).render(values)


def _shown(value: object) -> object:
    """What a template makes of a value before it escapes it: one plain line. HTML that a template made stays."""
    return value if isinstance(value, Markup) else plain_line(str(value))


_ENVIRONMENT = Environment(
    loader=FileSystemLoader(TEMPLATES),
    autoescape=True,
    undefined=StrictUndefined,
    finalize=_shown,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
_ENVIRONMENT.globals |= {"style": Markup(STYLE), "policy": Markup(POLICY), "counted": counted, "state": state}
_ENVIRONMENT.filters["plain_block"] = plain_block
