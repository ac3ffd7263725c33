"""What the grader's HTML pages share: the frame, its style, and text made safe to show. Needs nothing.

Any text of a result may be a learner's, and so hostile: none reaches a page but
through `shown` or `block`. A page loads nothing and runs no script.
"""

import base64
import hashlib
import html
import re
from collections.abc import Iterable, Sequence

from course_lib.exercises.verdict import NO_ANSWER, Verdict
from course_lib.staff.grade.results import LONGEST_LINE, UNSEEN, plain_line

LONGEST_BLOCK = 20_000
MOST_LINES = 25

_LIGHT = """--page: #ffffff; --card: #f4f6f8; --line: #c3c9d1; --text: #1a1a1a; --quiet: #4a4f57;
  --right: #005f99; --wrong: #a03c00; --blank: #6d4a7c; --unchecked: #5a5f66;"""
_DARK = """--page: #15171b; --card: #202329; --line: #4a505a; --text: #ececec; --quiet: #b9bec7;
  --right: #79c3f2; --wrong: #ffb07a; --blank: #d9b3e6; --unchecked: #b9bec7;"""
STYLE = f"""
:root {{ color-scheme: light dark; {_LIGHT} }}
@media screen and (prefers-color-scheme: dark) {{ :root {{ {_DARK} }} }}
body {{ margin: 0 auto; max-width: 50rem; padding: 1rem; font: 1rem/1.5 system-ui, sans-serif;
  color: var(--text); background: var(--page); overflow-wrap: anywhere; }}
h1, h2, h3 {{ line-height: 1.25; }} h2 {{ margin-top: 2.5rem; border-bottom: 2px solid var(--line); }}
h3 {{ margin: 1.25rem 0 .5rem; }} a {{ color: var(--right); }}
footer {{ margin-top: 3rem; border-top: 1px solid var(--line); }}
caption, footer, .quiet {{ color: var(--quiet); text-align: left; }} caption {{ padding-bottom: .25rem; }}
.right {{ --hue: var(--right); }} .wrong {{ --hue: var(--wrong); }}
.blank {{ --hue: var(--blank); }} .unchecked {{ --hue: var(--unchecked); }}
.card {{ margin: 1rem 0; padding: .25rem 1rem .5rem; background: var(--card); border-left: .4rem solid var(--hue); }}
.card h3 {{ margin-top: .5rem; }} .card ul {{ padding-left: 1.25rem; }} b {{ color: var(--hue); }}
dt {{ font-weight: bold; }} dd {{ margin: 0 0 .5rem; }}
pre {{ max-height: 24rem; overflow: auto; padding: .75rem; background: var(--card); white-space: pre-wrap; }}
.wide {{ overflow-x: auto; margin: 1rem 0; overflow-wrap: normal; }} table {{ border-collapse: collapse; }}
th, td {{ padding: .3rem .9rem .3rem 0; text-align: left; vertical-align: top; border-bottom: 1px solid var(--line); }}
td ul {{ margin: 0; padding-left: 1rem; }} .long {{ min-width: 12rem; overflow-wrap: anywhere; }}
.number {{ text-align: right; white-space: nowrap; }}
svg {{ display: block; width: 8rem; height: .8rem; print-color-adjust: exact; -webkit-print-color-adjust: exact; }}
rect {{ fill: var(--hue); stroke: var(--page); stroke-width: 2px; vector-effect: non-scaling-stroke; }}
:focus-visible {{ outline: 3px solid var(--right); outline-offset: 2px; }}
@media (max-width: 30rem) {{ .long {{ min-width: 7rem; }} th, td {{ padding-right: .5rem; }} svg {{ width: 5rem; }} }}
@media print {{ .card, tr {{ break-inside: avoid; }} h2, h3 {{ break-after: avoid; }}
  pre {{ max-height: none; }} body {{ max-width: none; }} }}
"""
_STYLE_HASH = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
POLICY = f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; base-uri 'none'; form-action 'none'"


def page(title: str, lead: str, parts: Iterable[str], footer: str) -> str:
    """A whole page: its title and lead are any text, its parts HTML, its footer plain words.

    Returns  one string that refers to no other file: write it as UTF-8
    """
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="referrer" content="no-referrer">'
        f"<title>{shown(title)}</title><style>{STYLE}</style></head>\n<body>\n"
        f"<header><h1>{shown(title)}</h1><p>{shown(lead)}</p></header>\n<main>\n" + "\n".join(parts) + "\n</main>\n"
        f"<footer><p>{shown(footer)}</p></footer>\n</body></html>\n"
    )


def shown(text: object, longest: int = LONGEST_LINE) -> str:
    """Any text as one line of HTML."""
    return html.escape(plain_line(str(text), longest))


def plain_block(text: str) -> str:
    """The end of a longer text with its lines, each unseen character as a replacement mark."""
    kept = text if len(text) <= LONGEST_BLOCK else "... " + text[-LONGEST_BLOCK:]
    return UNSEEN.sub("\ufffd", re.sub("\r\n?", "\n", kept))


def block(text: str) -> str:
    """The end of a longer text as HTML, its lines kept."""
    return f'<pre tabindex="0">{html.escape(plain_block(text))}</pre>'


def bullets(lines: Sequence[str]) -> str:
    """A list of any texts; of very many, the first."""
    kept = list(lines[:MOST_LINES])
    if len(lines) > MOST_LINES:
        kept.append(f"and {len(lines) - MOST_LINES} more")
    return "<ul>" + "".join(f"<li>{shown(line)}</li>" for line in kept) + "</ul>"


def table(caption: str, headers: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[int] = ()) -> str:
    """A table that scrolls by itself on a narrow screen.

    rows     cells of HTML; the first names the row
    numbers  the columns, from 0, that hold figures
    """
    kinds = [' class="number"' if column in numbers else ' class="long"' for column in range(len(headers))]
    head = "".join(f'<th scope="col"{kind}>{shown(header)}</th>' for header, kind in zip(headers, kinds))
    body = "".join(
        f'<tr><th scope="row"{kinds[0]}>{first}</th>'
        + "".join(f"<td{kind}>{cell}</td>" for cell, kind in zip(rest, kinds[1:]))
        + "</tr>"
        for first, *rest in rows
    )
    return (
        f'<div class="wide" role="region" aria-label="{shown(caption)}" tabindex="0">'
        f"<table><caption>{shown(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def counted(number: int, what: str) -> str:
    """The number with its noun: 1 point, 2 points."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def state(verdict: Verdict) -> str:
    """What became of a question, as the class that colours it: "right", "wrong", "blank" or "unchecked"."""
    if verdict.right:
        return "right"
    if verdict.problem.startswith(("is still blank", NO_ANSWER)):
        return "blank"
    return "unchecked" if verdict.problem.startswith("was not checked") else "wrong"
