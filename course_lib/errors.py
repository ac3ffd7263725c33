"""The one exception for mistakes that a user can fix. Standard library only; used everywhere."""


class CourseError(Exception):
    """What happened, the numbers, and the remedy, in one line.

    A notebook shows the line alone, without a traceback; the `course` command
    prints it to stderr and exits with 2.
    """

    def _render_traceback_(self) -> list[str]:
        """IPython's hook: what a cell shows instead of the traceback."""
        return [f"{type(self).__name__}: {self}"]
