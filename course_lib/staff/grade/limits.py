"""What one submission may take. Needs nothing."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """What a submission may take.

    cell_seconds  one cell, or one question's probe
    seconds       one run of the notebook
    memory_gib    all its processes together, and each of them
    processes     processes and threads
    scratch_mib   all files that it writes, shared memory included
    file_mib      one file
    """

    cell_seconds: float = 300.0
    seconds: float = 1500.0
    memory_gib: float = 6.0
    processes: int = 4096
    scratch_mib: float = 512.0
    file_mib: float = 256.0
