"""What lessons show: charts, schematics, and a function's source. The only room that imports matplotlib.

Every figure's caption states its finding in words, so that a reader who does
not see the picture loses nothing.
"""

from course_lib.show.arrays import bit_layouts, column_row_pair, mesh, ring, shards, tiles
from course_lib.show.charts import bars, images, lines, number_lines, plans, stack, stacks
from course_lib.show.figure import Figure
from course_lib.show.hardware import chip, roofline
from course_lib.show.in_time import accumulation, marks, messages, paired_calls, restarts, stale_updates, timelines
from course_lib.show.questions import path, tree
from course_lib.show.source_text import source
from course_lib.show.systems import flow, logical_devices, replica_step, stages, tasks

__all__ = ["Figure", "accumulation", "bars", "bit_layouts", "chip", "column_row_pair", "flow", "images", "lines"]
__all__ += ["logical_devices", "marks", "mesh", "messages", "number_lines", "paired_calls", "path", "plans"]
__all__ += ["replica_step", "restarts", "ring", "roofline", "shards", "source", "stack", "stacks", "stages"]
__all__ += ["stale_updates", "tasks", "tiles", "timelines", "tree"]
