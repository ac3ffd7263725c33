"""Small parts of `course_lib.cluster` against numbers worked out by hand: no process and no network."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from course_lib import cluster
from course_lib.cluster import communication, local, slurm, worker_program
from course_lib.errors import CourseError

GIB = 2**30


@pytest.mark.parametrize(
    ("files", "free"),
    [
        ({}, 10 * GIB),  # no container
        ({"memory.max": "max\n", "memory.current": str(GIB)}, 10 * GIB),  # one without a limit
        ({"memory.max": str(8 * GIB), "memory.current": str(6 * GIB)}, None),  # no memory.stat: not read to its end
        ({"memory.max": str(8 * GIB), "memory.current": str(6 * GIB), "memory.stat": "anon 5\n"}, 2 * GIB),
        (
            {
                "memory.max": str(8 * GIB),
                "memory.current": str(6 * GIB),
                "memory.stat": f"anon 5\ninactive_file {GIB}\nactive_file 7\n",
            },
            3 * GIB,
        ),
        ({"memory.max": str(90 * GIB), "memory.current": str(6 * GIB), "memory.stat": "anon 5\n"}, 10 * GIB),
    ],
)
def test_free_memory_is_the_machines_or_what_a_container_leaves(files, free, tmp_path, monkeypatch):
    monkeypatch.setattr(local.psutil, "virtual_memory", lambda: SimpleNamespace(available=10 * GIB))
    monkeypatch.setattr(local, "Path", lambda name: tmp_path)
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert local._free_memory_bytes() == (free or 10 * GIB)


def test_stored_timings_are_read_with_what_they_measured():
    for name in ("all-reduce", "training"):
        measured, timings = communication.stored(name)
        assert "20" in measured and len(timings) >= 3
        assert all(timing.workers == 2 and 0.5 < timing.ratio < 2 for timing in timings)
        assert all((timing.compute_seconds > 1e-3) == (name == "training") for timing in timings)
        assert all(timing.sent_bytes >= communication.ring_bytes(2, timing.buffer_bytes) for timing in timings)


def test_a_timing_says_all_of_itself():
    timing = communication.LinkTiming(2, 12.112, 1_448_000, 1.5e6, compute_seconds=0.5, measured_seconds=2.0)
    assert str(timing) == (
        "2 workers, 12.112 megabit/s, 1.45 MB: sent 1.50 MB, compute 0.500 s, step 2.000 s, "
        "predicted 1.500 s, ratio 0.75"
    )


@pytest.mark.parametrize(
    ("sbatch", "raised", "words"),
    [
        ("echo '7;here'; exit 1", cluster.RunFailed, "Slurm's job 7 failed: read batch.log and task-*.log in"),
        ("echo 'Welcome, 2 nodes are down'; echo 12; exit 1", cluster.RunFailed, "Slurm's job 12 failed"),
        ("echo 'come back later'; exit 0", CourseError, "took no job (come back later)"),
        ("echo first >&2; echo 'no such partition' >&2; exit 1", CourseError, "took no job (no such partition)"),
        ("exit 1", CourseError, "took no job (no message)"),
    ],
)
def test_what_sbatch_says_is_passed_on(sbatch, raised, words, tmp_path, monkeypatch):
    program = tmp_path / "sbatch"
    program.write_text(f"#!/bin/sh\n{sbatch}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(raised) as failed:
        slurm.submit(tmp_path / "batch.sh", wait=True)
    assert words in str(failed.value)


def test_a_program_is_read_as_utf_8_whatever_the_locale_is(tmp_path, monkeypatch):
    """A locale's own encoding is what `open` takes without one; here it is one that has no such letter."""
    (tmp_path / "train.py").write_bytes('def train(task):\n    return "übung"\n'.encode())
    asked = []
    plain = Path.read_text
    monkeypatch.setattr(
        Path, "read_text", lambda path, encoding=None, **more: asked.append(encoding) or plain(path, "utf-8")
    )
    program = worker_program._from_text(f"{tmp_path / 'train.py'}:train")
    assert program.file == "train.py" and '"übung"' in program.text and asked == ["utf-8"]
