"""Record lesson 03's killed run on this machine, for its view: `python tests/record_killed_run.py`.

Needs TensorFlow. The program is the lesson's own cell; what two workers report, in the order in which it arrives, and
which of them was killed, goes into course_lib/views/killed_run.json.
"""

import json
import tempfile
from pathlib import Path

from course_lib import cluster, devices
from course_lib.exercises.notebook_cells import read_notebook
from course_lib.views.recovery_view import FILE

LESSON = Path(__file__).parents[1] / "notebooks" / "03_multi_worker.ipynb"
SETTINGS = {"strategy_name": "MultiWorkerMirroredStrategy", "epochs": 2, "global_batch": 64}


def main() -> None:
    devices.quieten()
    (source,) = [cell["source"] for cell in read_notebook(LESSON)["cells"] if cell["source"].startswith("def train(")]
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "program.py")
        program.write_text(source)
        job = cluster.Job(f"{program}:train", arguments=SETTINGS, restarts=1)
        with cluster.start(job, show=None) as running:
            running.wait_report("worker 1", step=15)
            running.kill("worker 1")
            reports = running.outcome().reports
    rows = [[one.task, one.attempt, one.values["step"], round(one.values["loss"], 6)] for one in reports]
    lines = ",\n".join(map(json.dumps, rows))
    FILE.write_text(f'{{"killed": "worker 1", "save_every": 10, "reports": [\n{lines}\n]}}\n')
    print(f"{FILE.name}: {len(rows)} reports")


if __name__ == "__main__":
    main()
