"""A network lab: each task in its own network namespace, behind a link of limited rate; taught in notebooks/03.

Needs Linux, root, and the commands ip and tc (package iproute2) and nsenter
(package util-linux). The namespaces have no names: the kernel removes each one,
with its interfaces, when no process is in it and no open file refers to it, so
nothing stays when the process that opened them and its tasks have ended.
"""

import ctypes
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence

from course_lib.cluster.job import Link
from course_lib.errors import CourseError

PORT = 23450  # every task's own: it has an address to itself
COMMANDS = ("ip", "tc", "nsenter", "unshare")
CLONE_NEWNET = 0x40000000  # linux/sched.h
RANGE = "10.77.0.0/24"  # private, RFC 1918
FRAME_BYTES = 1514  # Ethernet header 14, then an MTU of 1500
PAYLOAD_BYTES = FRAME_BYTES - 14 - 20 - 20 - 12  # less Ethernet, IP, TCP, and TCP's timestamps
PAYLOAD_SHARE = PAYLOAD_BYTES / FRAME_BYTES  # 0.956: what a rate of frames leaves for data


class NetworkLab:
    """One namespace per task, and one more with a switch that joins them.

    hosts  one address per task; every lab has the same ones, because no lab sees another
    """

    def __init__(self, tasks: int, link: Link):
        self.link = link
        self.hosts = tuple(f"10.77.0.{number}" for number in range(1, tasks + 1))
        self._namespaces: list[int] = []  # open files: the switch's, then one per task

    def open(self) -> None:
        """Make the namespaces and their links.

        Raises  OSError with the failing command's error; nothing is left then
        """
        try:
            for _ in range(1 + len(self.hosts)):
                self._namespaces.append(_new_namespace())
            self._join()
            for position, host in enumerate(self.hosts):
                self._connect(position, host)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let the namespaces go: the kernel removes each when its last process has ended. Safe to call twice."""
        while self._namespaces:
            os.close(self._namespaces.pop())

    def command_prefix(self, position: int) -> list[str]:
        """What to put before a command to run it in a task's namespace; for children of this process."""
        return _enter(self._namespaces[1 + position])

    def _join(self) -> None:
        lines = ["link add switch type bridge", "link set switch addrgenmode none up"]
        for position, namespace in enumerate(self._namespaces[1:]):
            lines += [
                f"link add port{position} type veth peer name eth0 netns {_path(namespace)}",
                f"link set port{position} addrgenmode none master switch up",
            ]
        _run([*_enter(self._namespaces[0]), "ip", "-batch", "-"], lines)

    def _connect(self, position: int, host: str) -> None:
        # Frames leave ten at a time and TCP is plain reno: neither the CPU nor this system's settings limit the rate.
        lines = [
            "link set lo up",
            "link set eth0 gso_max_segs 10 addrgenmode none up",
            f"address add {host}/24 dev eth0 noprefixroute",
            f"route add {RANGE} dev eth0 src {host} congctl reno",
        ]
        _run([*self.command_prefix(position), "ip", "-batch", "-"], lines)
        limit_rate(self.link, self.command_prefix(position))


def limit_rate(link: Link, prefix: Sequence[str] = ()) -> None:
    """Set what a task can send; without a prefix this process's own link, also while it is in use.

    Raises  OSError with tc's error
    """
    _run([*prefix, "tc", "qdisc", "replace", "dev", "eth0", "root", *token_bucket(link)])


def sent_bytes() -> int:
    """Bytes of the frames that this process's link has sent, with headers and acknowledgements, as tc counts them.

    The interface's own counter counts one header for the ten frames that TCP hands over at a time.
    """
    return json.loads(_run(["tc", "-statistics", "-json", "qdisc", "show", "dev", "eth0"]))[0]["bytes"]


def token_bucket(link: Link) -> list[str]:
    """tc's arguments for a link: a token bucket filter (tc-tbf(8)).

    The bucket holds what the rate gives in 2 ms, and 10 frames or more: large
    enough for a timer that comes late, and small against the 100 ms and more
    of a transfer, because a full bucket is sent at once.
    """
    bits = round(link.megabits * 1e6)
    burst = max(10 * FRAME_BYTES, round(bits / 8 * 0.002))
    return ["tbf", "rate", f"{bits}bit", "burst", f"{burst}b", "latency", "100ms"]


def require(link: Link) -> None:
    """Try such a link in a namespace that is removed at once; raise CourseError with what this machine lacks."""
    if not 0.1 <= link.megabits <= 10_000:
        raise CourseError(f"a link has between 0.1 and 10000 megabits per second, not {link.megabits:g}.")
    if sys.platform != "linux" or os.geteuid() != 0:
        who = f"user {os.geteuid()} on Linux" if sys.platform == "linux" else f"on {sys.platform}"
        raise CourseError(f"links of limited rate need root on Linux, and this process runs as {who}: leave link out.")
    if missing := [name for name in COMMANDS if not shutil.which(name)]:
        raise CourseError(
            f"links of limited rate need {', '.join(missing)}: install iproute2 and util-linux, or leave link out."
        )
    links = "ip link add switch type bridge && ip link add eth0 type veth"
    try:
        _run(["unshare", "--net", "sh", "-c", f"{links} && tc qdisc add dev eth0 root {' '.join(token_bucket(link))}"])
    except OSError as error:
        raise CourseError(f"this system does not allow links of limited rate ({error}): leave link out.") from None


def _new_namespace() -> int:
    """An open file of a new network namespace; this thread enters it and comes back."""
    libc = ctypes.CDLL(None, use_errno=True)
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        if libc.unshare(CLONE_NEWNET):
            raise OSError(f"no new network namespace: {os.strerror(ctypes.get_errno())}")
        try:
            return os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        finally:
            libc.setns(home, CLONE_NEWNET)
    finally:
        os.close(home)


def _path(namespace: int) -> str:
    return f"/proc/{os.getpid()}/fd/{namespace}"


def _enter(namespace: int) -> list[str]:
    return ["nsenter", f"--net={_path(namespace)}", "--"]


def _run(command: Sequence[str], lines: Sequence[str] = ()) -> str:
    done = subprocess.run(command, input="\n".join(lines), capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"`{' '.join(command)}` said: {' '.join(done.stderr.split()) or done.returncode}")
    return done.stdout
