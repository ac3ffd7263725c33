"""What a question is: the names it asks for, its probe, targets and known mistakes.

Needs nothing; every exercise in exercises/judges is made of these.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

Answers = Mapping[str, object]  # plain values only; see ask.plain


@dataclass(frozen=True)
class Target:
    """One thing that a right answer does.

    goal   the target as the learner reads it, with its number
    holds  (answers, seed) -> True, or False, or a line that says with numbers
           how the answer misses the goal; never the reference answer itself
    """

    goal: str
    holds: Callable[[Answers, int], bool | str]


@dataclass(frozen=True)
class Mistake:
    """A wrong answer that people really give, and the two hints it earns.

    name       one word or two, for progress and statistics
    what       first hint: what is wrong
    where      second hint: where to look
    wrong      the mistake itself: a function in place of the one name that the
               question asks for, or a dict with an object for each name; None with an edit
    recognise  (answers, seed) -> bool; without it, the question's probe runs on the
               mistake and the plain values are compared
    edit       the mistake as an edit of the published answer: texts that stand once in it, each with its
               replacement
    """

    name: str
    what: str
    where: str
    wrong: Callable | Mapping[str, object] | None = None
    recognise: Callable[[Answers, int], bool] | None = None
    edit: Mapping[str, str] | None = None


@dataclass(frozen=True)
class Question:
    """One graded question.

    name      the tag of its answer cell and the argument of its check, "q1"
    asks_for  the names that the learner defines
    probe     (names, seed) -> plain values; runs beside the learner's code
    targets   every one must hold for the points
    mistakes  tried in order when a target fails; the first that fits is named
    answer    the published one, which mistakes edit: judges.published.Answer
    takes_long  the probe takes many seconds, so every mistake has its own
              `recognise`, and tests run few seeds
    Raises    ValueError when a mistake stands in for other names than asked for,
              edits an answer that is not there, or would have the probe run again to be recognised
    """

    name: str
    title: str
    asks_for: tuple[str, ...]
    probe: Callable[[Mapping[str, object], int], dict[str, object]]
    targets: tuple[Target, ...]
    mistakes: tuple[Mistake, ...]
    answer: object | None = None
    points: int = 1
    takes_long: bool = False

    def __post_init__(self) -> None:
        for mistake in self.mistakes:
            if not mistake.recognise and (self.takes_long or not (mistake.edit or mistake.wrong)):
                raise ValueError(f"{self.name}: mistake {mistake.name!r} needs a `recognise`, or the probe runs again")
            if mistake.edit and not self.answer:
                raise ValueError(f"{self.name}: mistake {mistake.name!r} edits an answer that is not given")
            if mistake.wrong and set(self.stand_ins(mistake)) != set(self.asks_for):
                raise ValueError(f"{self.name}: mistake {mistake.name!r} must stand in for {', '.join(self.asks_for)}")

    def stand_ins(self, mistake: Mistake) -> dict[str, object]:
        """The names as a learner with this mistake would define them; none where only tests hold the mistake."""
        if mistake.edit:
            names = self.answer.names(mistake.edit)
            return {name: names[name] for name in self.asks_for}
        if isinstance(mistake.wrong, Mapping):
            return dict(mistake.wrong)
        return {self.asks_for[0]: mistake.wrong} if mistake.wrong else {}
