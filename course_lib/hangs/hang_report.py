"""What a job that stands still looks like, its tasks side by side: as text, in a notebook, and as one page."""

import functools
from dataclasses import dataclass
from html import escape
from pathlib import Path

from course_lib import report
from course_lib.hangs.causes import HangCause, diagnose
from course_lib.hangs.evidence import Evidence
from course_lib.table import Table

FRAMES = 12  # of a stack, from the innermost on
LAST = 8  # collectives that are shown


@dataclass(frozen=True, repr=False)
class HangReport:
    """Shows as text in a terminal and as tables in a notebook; `write` makes a page of it.

    tasks      what each looked like
    seconds    that none had made progress; 0 when a task failed
    """

    tasks: tuple[Evidence, ...]
    seconds: float

    @functools.cached_property
    def diagnosis(self) -> HangCause:
        """Which task differs, and why."""
        return diagnose(self.tasks)

    @property
    def summary(self) -> str:
        what = f"No task made progress for {self.seconds:.0f} s." if self.seconds else "A task failed."
        about = f"Look at {self.diagnosis.task} ({self.diagnosis.cause}): " if self.diagnosis.task else ""
        return f"{what} {about}{self.diagnosis}"

    def as_json(self) -> dict:
        return {"tasks": [one.as_json() for one in self.tasks], "seconds": self.seconds}

    @classmethod
    def from_json(cls, fields: dict) -> "HangReport":
        return cls(tuple(map(Evidence.from_json, fields["tasks"])), fields["seconds"])

    def table(self) -> Table:
        """One row per task."""
        heads = ("task", "state", "step", "collectives", "quiet s", "cores", "MiB", "sent B", "where")
        rows = [
            (
                one.task,
                one.state,
                _known(one.step),
                one.entered,
                _known(one.quiet, ".0f"),
                _known(one.busy, ".2f"),
                _known(one.memory_bytes and one.memory_bytes / 2**20, ".0f"),
                _known(one.sent_bytes, ",.0f"),
                one.own or one.now or "-",
            )
            for one in self.tasks
        ]
        return Table(heads, rows, "Each task", left=(0, 1, 8))

    def collectives(self) -> Table:
        """The last calls that entered collectives, task beside task."""
        calls = {one.task: {entered.number: entered for entered in one.collectives} for one in self.tasks}
        numbers = sorted(set().union(*calls.values()))[-LAST:]
        rows = [(number, *(_call(entered.get(number)) for entered in calls.values())) for number in numbers]
        return Table(("call", *calls), rows, "The last calls with collectives", left=tuple(range(1 + len(calls))))

    def stacks(self) -> dict[str, str]:
        """Each task's threads, innermost line first, and the kernel functions in which its threads wait."""
        return {one.task: _threads(one) for one in self.tasks if one.threads or one.waits}

    def links(self) -> Table:
        """The connections on which something is not acknowledged, or that are not open."""
        rows = [
            (one.task, *link)
            for one in self.tasks
            for link in one.links
            if link[0] not in ("listens", "established") or any(link[2:])
        ]
        heads = "task", "connection", "to", "not acknowledged B", "tries"
        return Table(heads, rows, "Connections that wait for an answer", left=(0, 1, 2))

    def __repr__(self) -> str:
        parts = [self.summary, repr(self.table())]
        parts += [repr(table) for table in (self.collectives(), self.links()) if table.rows]
        parts += [f"{task}\n{text}" for task, text in self.stacks().items()]
        return "\n\n".join(parts)

    def _repr_html_(self) -> str:
        tables = (self.table(), self.collectives())
        return f"<p>{escape(self.summary)}</p>" + "".join(table._repr_html_() for table in tables if table.rows)

    def write(self, path: Path | str) -> Path:
        """Write the page, and the text beside it, as PATH.html and PATH.txt; return the page's path."""
        page = Path(path).with_suffix(".html")
        page.write_text(self.page(), encoding="utf-8")
        page.with_suffix(".txt").write_text(f"{self!r}\n", encoding="utf-8")
        return page

    def page(self) -> str:
        """All of it as HTML that loads nothing."""
        sections = {
            "Side by side": [table for table in (self.table(), self.collectives(), self.links()) if table.rows],
            "Stacks": [_Listing(task, text) for task, text in self.stacks().items()],
        }
        return report.page(
            "A job that stands still", self.summary, {name: parts for name, parts in sections.items() if parts}
        )


@dataclass(frozen=True)
class _Listing:
    name: str
    text: str

    def html(self) -> str:
        return f'<h3>{escape(self.name)}</h3><div class="wide"><pre>{escape(self.text)}</pre></div>'


def _known(value: float | None, form: str = "") -> str:
    return "-" if value is None else format(value, form)


def _call(entered) -> str:
    return "-" if entered is None else entered.text + ("" if entered.left else "  (is in it)")


def _threads(one: Evidence) -> str:
    lines = []
    for number, thread in enumerate(one.threads):
        lines.append("main thread" if number == 0 else f"thread {number}")
        lines += [f"  {frame}" for frame in thread[:FRAMES]]
        lines += [f"  and {len(thread) - FRAMES} more"] if len(thread) > FRAMES else []
    waits = ", ".join(f"{count} in {name}" for name, count in one.waits.items())
    return "\n".join([*lines, f"threads that wait in the kernel: {waits}"] if waits else lines)
