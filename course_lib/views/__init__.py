"""Eight views to play with, each whole in its still state and driven by the functions that the lessons prove.

Standard library only until one is shown. Calling a name gives a
`explorer.Explorer`: `views.all_reduce()` at a cell's end shows it, and
`views.all_reduce(workers=8).still` is that one state as a picture and a table.
"""

from course_lib.views.all_reduce_view import all_reduce
from course_lib.views.formats_view import formats
from course_lib.views.memory_view import memory
from course_lib.views.pipeline_view import pipeline
from course_lib.views.recovery_view import recovery
from course_lib.views.staleness_view import staleness
from course_lib.views.strategy_view import strategy
from course_lib.views.zero_stages_view import zero_stages

__all__ = ["all_reduce", "formats", "memory", "pipeline", "recovery", "staleness", "strategy", "zero_stages"]
