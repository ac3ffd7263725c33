"""What a check says: which targets are met, and the hint. Needs nothing."""

import html
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class TargetResult:
    """One target: its goal, whether it is met, and if not, how it is missed."""

    goal: str
    met: bool
    detail: str = ""


@dataclass(frozen=True)
class Verdict:
    """The judge's answer to one question.

    question  its name; points of `of` are earned, all or none
    targets   one result per target; empty when there was nothing to compare
    mistake   the known mistake's name, or None
    hints     what is wrong, then where to look
    problem   one line when the code did not get as far as an answer
    notes     what was odd about the notebook, one line each
    """

    question: str
    title: str
    right: bool
    points: int
    of: int
    targets: tuple[TargetResult, ...] = ()
    mistake: str | None = None
    hints: tuple[str, ...] = ()
    problem: str = ""
    notes: tuple[str, ...] = ()

    @property
    def summary(self) -> str:
        """The verdict in one line."""
        if self.right:
            return f"{self.question} is right: {self.points} of {self.of} {'point' if self.of == 1 else 'points'}"
        if self.problem:
            return f"{self.question} {self.problem}"
        met = sum(target.met for target in self.targets)
        return f"{self.question} is not right yet: {met} of {len(self.targets)} targets met"

    @property
    def is_missing(self) -> bool:
        """Whether the name that the question asks for was not there."""
        return self.problem.startswith(NO_ANSWER)

    @property
    def is_blank(self) -> bool:
        """Whether there was no answer yet to judge."""
        return self.problem == STILL_BLANK or self.is_missing

    @property
    def message(self) -> str:
        """The whole verdict as text, a line per target and hint."""
        width = max((len(_word(target)) for target in self.targets), default=0)
        lines = [f"  {_word(target):<{width}}  {_sentence(target)}" for target in self.targets]
        lines += [f"  {label}: {hint}" for label, hint in zip(_LABELS, self.hints)]
        lines += [f"  Note: {note}" for note in self.notes]
        return "\n".join([self.summary, *lines])

    def as_dict(self) -> dict[str, object]:
        """Plain values for JSON; from_dict takes them back."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict) -> "Verdict":
        """The verdict that as_dict, perhaps by way of JSON, wrote."""
        targets = tuple(TargetResult(**target) for target in values["targets"])
        lists = {name: tuple(values[name]) for name in ("hints", "notes")}
        return cls(**{**values, **lists, "targets": targets})

    def __str__(self) -> str:
        return self.message

    def _repr_html_(self) -> str:
        mark = "&#10003;" if self.right else "&#10007;"
        rows = "".join(f"<li><b>{_word(target)}</b>: {html.escape(_sentence(target))}</li>" for target in self.targets)
        hints = "".join(f"<p><b>{label}</b>: {html.escape(hint)}</p>" for label, hint in zip(_LABELS, self.hints))
        notes = "".join(f"<p>Note: {html.escape(note)}</p>" for note in self.notes)
        colour = "#0072b2" if self.right else "#d55e00"  # colour-blind readers can tell them apart
        return (
            f'<div style="border-left: 4px solid {colour}; padding-left: 1em">'
            f"<p>{mark} <b>{html.escape(self.summary)}</b></p><ul>{rows}</ul>{hints}{notes}</div>"
        )


STILL_BLANK = "is still blank"
NO_ANSWER = "has no answer"  # begins the problem of a verdict on a name that is not there
_LABELS = ("What is wrong", "Where to look")


def _word(target: TargetResult) -> str:
    return "met" if target.met else "not met"


def _sentence(target: TargetResult) -> str:
    return f"{target.goal}: {target.detail}" if target.detail else target.goal
