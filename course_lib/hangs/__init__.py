"""A job that stands still: who waits for whom, and why. Taught in notebooks/12."""

from course_lib.hangs.causes import CAUSES, HangCause, diagnose
from course_lib.hangs.evidence import Evidence
from course_lib.hangs.hang_report import HangReport
from course_lib.hangs.own_program import watch
from course_lib.hangs.recorder import step

__all__ = ["CAUSES", "HangCause", "Evidence", "HangReport", "diagnose", "step", "watch"]
