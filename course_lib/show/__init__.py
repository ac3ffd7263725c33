"""What lessons show: charts, schematics, and a function's source. The only room that imports matplotlib.

Every figure's caption states its finding in words, so that a reader who does
not see the picture loses nothing.
"""

from course_lib.show.charts import Figure, bars, images, lines, number_lines, plans, stack
from course_lib.show.schematics import messages, path, shards, timelines
from course_lib.show.source_text import source

__all__ = ["Figure", "bars", "images", "lines", "messages", "number_lines", "path", "plans", "shards", "source"]
__all__ += ["stack", "timelines"]
