"""Predicted over measured time on limited links, both from one run: `python tests/benchmark_network.py`, as root on Linux.

A ratio should lie between 0.85 and 1.15; where a task's core is shared, it falls below.
"""

from course_lib.cluster import communication

if __name__ == "__main__":
    print("all-reduce alone")
    for timing in communication.measure_all_reduce((50, 100, 200, 400)):
        print(f"  {timing}")
    print("a training step")
    for timing in communication.measure_training((50, 100, 200)):
        print(f"  {timing}")
