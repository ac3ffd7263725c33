"""Probe of exercise 07 q6: a mesh. Needs NumPy. The inputs are functions of the seed."""

import numpy as np

from course_lib.exercises.probes.cases import ask_or_refused, shuffled


def clusters(seed: int) -> list[dict[str, int]]:
    """q6's cases: small ones, then some times a scale for bytes and a scale for devices and batch, in no order.

    Of the small ones some fill the memory, one has a machine that an axis fits into and does not divide, one a batch
    with an example for each device and not equally many, and in one a larger axis fits less. The others differ in what
    decides: memory, heads, machine, batch, what stays whole; the last has no mesh.
    """
    nothing = dict.fromkeys(("whole_bytes", "cut_bytes", "example_whole_bytes", "example_cut_bytes"), 0)
    two = {"devices": 2, "machine_devices": 2, "heads": 2, "global_batch": 2, **nothing}
    eight = {"devices": 8, "machine_devices": 8, "heads": 8, "global_batch": 8, **nothing}
    small = [
        two | {"cut_bytes": 4, "memory_bytes": 2},
        two | {"global_batch": 1, "cut_bytes": 4, "memory_bytes": 2},
        two | {"cut_bytes": 3, "memory_bytes": 1},
        two | {"cut_bytes": 2, "example_cut_bytes": 4, "memory_bytes": 5},
        two | {"example_cut_bytes": 3, "memory_bytes": 2},
        two | {"global_batch": 4, "example_whole_bytes": 4, "memory_bytes": 7},
        eight | {"global_batch": 12, "cut_bytes": 8, "memory_bytes": 16},
        eight | {"cut_bytes": 16, "example_whole_bytes": 4, "memory_bytes": 16},
        eight | {"devices": 24, "heads": 12, "global_batch": 24, "cut_bytes": 24, "memory_bytes": 8},
    ]
    rng = np.random.default_rng(seed)
    base = {
        "devices": 16,
        "machine_devices": 8,
        "heads": 8,
        "global_batch": 32,
        "whole": 2.0,
        "cut": 32.0,
        "example_whole": 0.55,
        "example_cut": 1.0,
        "memory": 18.5,
    }
    special = [
        {},
        {"memory": 40.0},
        {"devices": 24, "machine_devices": 12, "global_batch": 48},
        {"devices": 24, "machine_devices": 12, "global_batch": 48, "heads": 12},
        {"global_batch": 8, "memory": 40.0},
        {"whole": 8.0, "cut": 16.0, "global_batch": 8, "example_whole": 0.1, "example_cut": 0.1, "memory": 12.7},
        {"global_batch": 8, "example_whole": 2.0, "example_cut": 0.1, "memory": 19.5},
        {"machine_devices": 2},
        {"cut": 8.0, "example_whole": 0.1, "example_cut": 4.0, "memory": 14.0},
    ]
    cases = [_cluster(base | changed, int(rng.integers(1, 10)), rng.uniform(0.5e9, 2e9)) for changed in special]
    # Thousands of devices, of which a machine has many hundreds: an axis beyond 64, and a large part of the batch.
    large = {"devices": 4608, "machine_devices": 1152, "heads": 384, "global_batch": 9216}
    sizes = {"whole": 2.0, "cut": 1900.0, "example_whole": 0.001, "example_cut": 0.01, "memory": 18.5}
    return [*small, *shuffled(rng, cases), _cluster(large | sizes, 1, rng.uniform(0.5e9, 2e9))]


def _cluster(case: dict, times: int, gigabyte: float) -> dict[str, int]:
    sizes = ("whole", "cut", "example_whole", "example_cut", "memory")
    counts = {name: number for name, number in case.items() if name not in sizes}
    counts["devices"] *= times
    counts["global_batch"] *= times
    return counts | {f"{name}_bytes": int(case[name] * gigabyte) for name in sizes}


def probe_mesh(names, seed):
    """The learner's mesh for each case, or that it raised a ValueError."""
    return {"meshes": [ask_or_refused(names["choose_mesh"], case, list) for case in clusters(seed)]}
