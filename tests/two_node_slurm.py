"""A real two-node Slurm on this machine: munged, slurmctld and two slurmd, ended by their process ids.

Needs root and Debian's packages slurm-wlm and munge.
"""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

# sbatch --wait asks after 2, 8, 32, 32 ... seconds, and every 2 s where a finished job is forgotten after 5.
CONFIGURATION = """\
ClusterName=course
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
SlurmUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SchedulerType=sched/builtin
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
MinJobAge=5
SlurmdParameters=config_overrides
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs={cpus} RealMemory=4000 State=UNKNOWN
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs={cpus} RealMemory=4000 State=UNKNOWN
PartitionName=course Nodes=n[1-2] Default=YES State=UP
"""
PROGRAMS = ("slurmctld", "slurmd", "sbatch", "munged", "mungekey")


def missing() -> str:
    """Why there is no Slurm here, or ""."""
    absent = [program for program in PROGRAMS if shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin") is None]
    if absent:
        return f"{', '.join(absent)} missing: apt-get install slurm-wlm munge"
    return "" if os.geteuid() == 0 else "a Slurm of one's own needs root"


@contextmanager
def two_nodes(folder: Path, cpus: int = 2, within: Callable[[list[str]], list[str]] = list) -> Iterator[None]:
    """Slurm's commands reach the two nodes n1 and n2 inside the block.

    cpus    what each node says it has, whatever this machine has
    folder  for its configuration, state and logs; a short path, because sockets lie there
    within  gives the command line that starts a daemon, from the plain one
    """
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
    ports = [server.getsockname()[1] for server in held]
    for server in held:
        server.close()
    (folder / "slurm.conf").write_text(
        CONFIGURATION.format(host=socket.gethostname(), folder=folder, ports=ports, cpus=cpus)
    )
    (folder / "state").mkdir()
    environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf"), "PATH": f"{os.environ['PATH']}:/usr/sbin"}
    key = folder / "munge.key"
    subprocess.run(["mungekey", "--create", f"--keyfile={key}"], check=True, env=environment)
    files = [f"--{name}-file={folder}/munge.{name}" for name in ("key", "pid", "log", "seed")]
    daemons: list[subprocess.Popen] = []

    def start(*command: str) -> None:
        with open(folder / f"{command[0]}-{len(daemons)}.out", "w") as log:
            daemons.append(
                subprocess.Popen(within([*command]), env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
            )

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", environment["SLURM_CONF"])
        try:
            start("munged", "--foreground", "--force", f"--socket={folder}/munge.socket", *files)
            start("slurmctld", "-D")
            for node in ("n1", "n2"):
                start("slurmd", "-D", "-N", node)
            _until_both_are_idle(daemons, folder)
            yield
        finally:
            _end_all_jobs()
            for daemon in reversed(daemons):
                daemon.terminate()
            for daemon in daemons:
                daemon.wait(timeout=60)


def _end_all_jobs() -> None:
    """The tasks of a job outlive the daemons."""
    subprocess.run(["scancel", "--full", "--me"], capture_output=True)
    deadline = time.monotonic() + 60
    while (
        subprocess.run(["squeue", "--noheader"], capture_output=True, text=True).stdout and time.monotonic() < deadline
    ):
        time.sleep(0.2)


def _until_both_are_idle(daemons: list[subprocess.Popen], folder: Path) -> None:
    """Ask until both nodes have reported; nothing announces it."""
    deadline = time.monotonic() + 60
    while "n[1-2] idle" not in (
        states := subprocess.run(["sinfo", "--noheader", "--format=%N %T"], capture_output=True, text=True).stdout
    ):
        lost = [daemon.args for daemon in daemons if daemon.poll() is not None]
        assert not lost and time.monotonic() < deadline, f"{lost} ended; {states!r}; the logs are in {folder}"
        time.sleep(0.2)
