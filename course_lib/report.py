"""A training run as one page: a single HTML file that a colleague opens anywhere. Taught in notebooks/11.

Standard library only. Figures come as `show.Figure`; the page embeds them, so it loads nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from course_lib.errors import CourseError
from course_lib.table import Table

STYLE = """
body { margin: 0 auto; max-width: 46rem; padding: 1rem; font: 1rem/1.5 system-ui, sans-serif; }
body { color: #1a1a1a; background: #fff; }
h1 { line-height: 1.2; } h2 { margin-top: 2.5rem; border-bottom: 1px solid #ccc; }
figure { margin: 1.5rem 0; } img { max-width: 100%; height: auto; }
figcaption, caption { color: #444; text-align: left; }
.wide { overflow-x: auto; } table { border-collapse: collapse; } tr { border-bottom: 1px solid #eee; }
th, td { padding: .25rem .75rem .25rem 0; vertical-align: top; text-align: left; }
thead th + th, thead + tbody td { text-align: right; }
.checks { padding: 0; list-style: none; }
.checks li { margin: .75rem 0; padding-left: .75rem; border-left: 4px solid #0072b2; }
.checks .failed { border-color: #d55e00; }
"""
# A browser that keeps this rule shows that the page needs nothing from anywhere.
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


@dataclass(frozen=True)
class Check:
    """A claim about the run that something has tested.

    evidence  what was measured, with its numbers
    """

    claim: str
    passed: bool
    evidence: str


def page(title: str, summary: str, sections: Mapping[str, Sequence[object]], checks: Sequence[Check] = ()) -> str:
    """The whole report as HTML: the summary, the checks, then the sections in their order.

    summary   one paragraph, in plain words
    sections  heading to its parts: text, a `table.Table`, a `show.Figure`, or a mapping of facts by name
    checks    those that failed are shown as failed, and counted above
    Returns   one string that refers to no other file and runs no script: write it as UTF-8
    Raises    CourseError for a part of another kind
    """
    body = [f"<h1>{escape(title)}</h1>", f"<p>{escape(summary)}</p>", *_checks(checks)]
    for heading, parts in sections.items():
        body += [f"<h2>{escape(heading)}</h2>", *(_part(part, heading) for part in parts)]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>\n<body><main>\n"
        + "\n".join(body)
        + "\n</main></body></html>\n"
    )


def _part(part: object, heading: str) -> str:
    if isinstance(part, str):
        return f"<p>{escape(part)}</p>"
    if isinstance(part, Table):
        return f'<div class="wide">{part._repr_html_()}</div>'
    if isinstance(part, Mapping):
        rows = "".join(
            f'<tr><th scope="row">{escape(str(name))}</th><td>{escape(str(fact))}</td></tr>'
            for name, fact in part.items()
        )
        return f'<div class="wide"><table>{rows}</table></div>'
    if hasattr(part, "html"):
        return part.html()
    raise CourseError(
        f"the section {heading!r} holds a part of type {type(part).__name__}: a part is text, a table.Table, "
        "a figure of course_lib.show, or a dict of facts."
    )


def _checks(checks: Sequence[Check]) -> list[str]:
    if not checks:
        return []
    passed = sum(check.passed for check in checks)
    items = "".join(
        f'<li class="{"passed" if check.passed else "failed"}"><strong>{"passed" if check.passed else "FAILED"}: '
        f"{escape(check.claim)}</strong><br>{escape(check.evidence)}</li>"
        for check in checks
    )
    return [f"<h2>Checks: {passed} of {len(checks)} passed</h2>", f'<ul class="checks">{items}</ul>']
