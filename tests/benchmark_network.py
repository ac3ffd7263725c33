"""Predicted over measured time on limited links, both from one run.

Run `python tests/benchmark_network.py` as root on Linux.
A ratio should lie between 0.85 and 1.15; where a task's core is shared, it falls
below. With --write, lesson 03 shows these numbers where links cannot be limited.
"""

import argparse
import datetime
import importlib.metadata
import platform

from course_lib import devices
from course_lib.cluster import communication

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="store the numbers for lesson 03")
    write = parser.parse_args().write

    print("all-reduce alone")
    bare = communication.measure_all_reduce((50, 100, 200, 400))
    print(*(f"  {timing}" for timing in bare), sep="\n")
    print("a training step")
    training = communication.measure_training((25, 50, 100, 200))
    print(*(f"  {timing}" for timing in training), sep="\n")
    if write:
        version = devices.machine().versions["tensorflow"]
        keras = importlib.metadata.version("keras")
        where = f"{devices.machine().cores} CPU cores, {platform.system()}, TensorFlow {version}, Keras {keras}"
        communication.store(f"{datetime.date.today()}, {where}", all_reduce=bare, training=training)
