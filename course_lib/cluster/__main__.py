"""`python -m course_lib.cluster FOLDER`: be one task of the job that FOLDER/job.json describes."""

import os
import sys
from pathlib import Path

from course_lib.cluster.task import run_task
from course_lib.errors import CourseError

try:
    code = run_task(Path(sys.argv[1]).resolve(), os.environ)
except CourseError as mistake:
    print(f"course cluster: {mistake}", file=sys.stderr)
    code = 2
sys.stdout.flush()
sys.stderr.flush()
os._exit(code)  # TensorFlow's servers do not stop, and an orderly exit would wait for them
