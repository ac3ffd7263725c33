"""How every notebook's first code cell begins: it finds the course, or installs it from a repository. Needs nothing."""

import re

TEXT = """\
# @title Set-up
REPOSITORY = ""  # OWNER/NAME@COMMIT on GitHub; `course badges` writes it
try:
    import course_lib
except ImportError as error:  # Colab: install this course, and replace nothing
    import subprocess
    import sys

    where = f"git+https://github.com/{REPOSITORY or '(none is named)'}"
    pip = [sys.executable, "-m", "pip", "install", "-q", "--retries=1", where]
    if not REPOSITORY or subprocess.run(pip, capture_output=True).returncode:
        error._render_traceback_ = lambda: [
            f"The course is not installed, and cannot be from {where}.",
            "In a fork: `course badges`. Else: `course colab`. See README.md.",
        ]
        raise
"""
AS_IT_IS = re.compile(r"\A" + re.escape(TEXT).replace('REPOSITORY\\ =\\ ""', 'REPOSITORY\\ =\\ "[\\w.@/-]*"'))
