"""Graded exercises: a probe collects plain values, a judge compares them.

The probe runs where the learner's code runs and returns nothing but numbers,
text and arrays; the judge is a pure function of those values and a seed. The two
halves share no objects, so they can live in two processes.
"""

from course_lib.exercises.check import CheckFailed, Exercise
from course_lib.exercises.question import Mistake, Question, Target

__all__ = ["CheckFailed", "Exercise", "Mistake", "Question", "Target"]
