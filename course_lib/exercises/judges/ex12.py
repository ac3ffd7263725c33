"""Exercise 12: programs that hang, diverge and crawl, diagnosed and repaired. Each question has a module."""

from course_lib.exercises.judges.ex12_bad_rows import BAD_ROWS
from course_lib.exercises.judges.ex12_early_stop import EARLY_STOP
from course_lib.exercises.judges.ex12_mixed_order import MIXED_ORDER
from course_lib.exercises.judges.ex12_reports import DIAGNOSE
from course_lib.exercises.judges.ex12_schedule import SCHEDULE

QUESTIONS = (DIAGNOSE, EARLY_STOP, MIXED_ORDER, BAD_ROWS, SCHEDULE)
