"""The one exception for mistakes that a user can fix, and one line of any other. Standard library only."""

import re

_AROUND = re.compile(
    r'File "|\[\[\{\{|Graph execution error|Detected at node|in user code|(\w+: )?Exception encountered when calling'
    r"|Arguments received by|.*Error encountered:$|\d+ root error|[•^]"
)
_MARKS = re.compile(
    r"\x1b\[\d+m|\{\{function_node [^}]*\}\} ?| for '\{\{node [^']*'|^\(\d+\) [A-Z_]+: |\s*\[Op:[^]]*\]( name:.*)?$"
)


class CourseError(Exception):
    """What happened, the numbers, and the remedy, in one line.

    A notebook shows the line alone, without a traceback; the `course` command
    prints it to stderr and exits with 2.
    """

    def _render_traceback_(self) -> list[str]:
        """IPython's hook: what a cell shows instead of the traceback."""
        return [f"{type(self).__name__}: {self}"]


def telling_line(message: str) -> str:
    """The first line of an error's message that says what happened; the first of all where none does.

    TensorFlow and Keras put stacks, places in the graph and a layer's arguments around it.
    """
    after_file = False  # the line right below is that file's own
    for line in map(str.strip, message.splitlines()):
        if line and not after_file and not _AROUND.match(line):
            return _MARKS.sub("", line).strip()
        after_file = line.startswith('File "')
    return message.strip().partition("\n")[0].strip()
