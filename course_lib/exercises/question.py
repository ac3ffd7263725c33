"""What a question is: the names it asks for, its probe, targets and known mistakes.

Needs nothing; every exercise in exercises/judges is made of these.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

Answers = Mapping[str, object]  # plain values only; see asking.plain


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
               question asks for, or a dict with an object for each name
    recognise  (answers, seed) -> bool; without it, the question's probe runs on
               `wrong` and the plain values are compared
    """

    name: str
    what: str
    where: str
    wrong: Callable | Mapping[str, object]
    recognise: Callable[[Answers, int], bool] | None = None


@dataclass(frozen=True)
class Question:
    """One graded question.

    name      the tag of its answer cell and the argument of its check, "q1"
    asks_for  the names that the learner defines
    probe     (names, seed) -> plain values; runs beside the learner's code
    targets   every one must hold for the points
    mistakes  tried in order when a target fails; the first that fits is named
    takes_long  the probe takes many seconds, so every mistake has a `recognise`
              of its own, and tests run few seeds
    Raises    ValueError when a mistake stands in for other names than asked for,
              or would have the probe run again to be recognised
    """

    name: str
    title: str
    asks_for: tuple[str, ...]
    probe: Callable[[Mapping[str, object], int], dict[str, object]]
    targets: tuple[Target, ...]
    mistakes: tuple[Mistake, ...]
    points: int = 1
    takes_long: bool = False

    def __post_init__(self) -> None:
        for mistake in self.mistakes:
            if self.takes_long and not mistake.recognise:
                raise ValueError(f"{self.name}: mistake {mistake.name!r} needs a `recognise`, or the probe runs again")
            if set(self.stand_ins(mistake)) != set(self.asks_for):
                raise ValueError(f"{self.name}: mistake {mistake.name!r} must stand in for {', '.join(self.asks_for)}")

    def stand_ins(self, mistake: Mistake) -> dict[str, object]:
        """The names as a learner with this mistake would define them."""
        if isinstance(mistake.wrong, Mapping):
            return dict(mistake.wrong)
        return {self.asks_for[0]: mistake.wrong}
