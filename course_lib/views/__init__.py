"""Six views to play with, each whole in its still state and driven by the functions that the lessons prove.

Nothing but the standard library until one is shown. A name called gives an
`explore.Explorer`: `views.all_reduce()` at a cell's end shows it, and
`views.all_reduce(workers=8).still` is that one state as a picture and a table.
"""

from course_lib.views.ledgers import all_reduce
from course_lib.views.memory_bar import memory
from course_lib.views.number_formats import formats
from course_lib.views.stale_updates import staleness
from course_lib.views.strategies import strategy
from course_lib.views.timetables import pipeline

__all__ = ["all_reduce", "formats", "memory", "pipeline", "staleness", "strategy"]
