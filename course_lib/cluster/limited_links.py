"""A laboratory: each task in a network namespace of its own, behind a link of limited rate; taught in notebooks/03.

Needs Linux, root, and the commands ip and tc (package iproute2) and nsenter
(package util-linux). The namespaces have no names. The kernel keeps each one
while a process is in it or an open file stands for it, so that all of them,
with their interfaces, go when the process that opened them and its tasks are
gone, however they ended.
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
    """As many namespaces as tasks, joined by a switch in one more.

    hosts  one address per task; another laboratory has the same, because neither sees the other
    """

    def __init__(self, tasks: int, link: Link):
        self.link = link
        self.hosts = tuple(f"10.77.0.{number}" for number in range(1, tasks + 1))
        self._namespaces: list[int] = []  # open files: the switch's, then one per task

    def open(self) -> None:
        """Make the namespaces and their links.

        Raises  OSError with the failing command's own words; nothing is left then
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
        """Let the namespaces go: the kernel removes each when its last process has ended. Again is no harm."""
        while self._namespaces:
            os.close(self._namespaces.pop())

    def command_prefix(self, position: int) -> list[str]:
        """Words that run a command in a task's namespace, for this process's children."""
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
        # Frames leave ten at a time and TCP is plain reno, so that neither the processor nor this system's settings limit the rate.
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

    Raises  OSError with tc's words
    """
    _run([*prefix, "tc", "qdisc", "replace", "dev", "eth0", "root", *token_bucket(link)])


def sent_bytes() -> int:
    """Bytes of the frames that this process's own link has sent, headers and acknowledgements included, as tc counts them.

    The interface's own counter has one header for the ten frames that TCP hands over at a time.
    """
    return json.loads(_run(["tc", "-statistics", "-json", "qdisc", "show", "dev", "eth0"]))[0]["bytes"]


def token_bucket(link: Link) -> list[str]:
    """The words that tell tc about a link: a token bucket filter (tc-tbf(8)).

    The bucket holds what the rate gives in 2 ms, and 10 frames or more: large
    enough for a timer that comes late, and small against the 100 ms and more
    of a transfer, because a full bucket is sent at once.
    """
    bits = round(link.megabits * 1e6)
    burst = max(10 * FRAME_BYTES, round(bits / 8 * 0.002))
    return ["tbf", "rate", f"{bits}bit", "burst", f"{burst}b", "latency", "100ms"]


def require(link: Link) -> None:
    """Raise CourseError when this machine cannot have such links, with what it lacks; try one, in a namespace that goes at once."""
    if not 0.1 <= link.megabits <= 10_000:
        raise CourseError(f"a link has between 0.1 and 10000 megabits per second, not {link.megabits:g}.")
    if sys.platform != "linux" or os.geteuid() != 0:
        who = f"user {os.geteuid()} on Linux" if sys.platform == "linux" else f"on {sys.platform}"
        raise CourseError(f"links of limited rate need root on Linux, and this process runs as {who}: leave link out.")
    if missing := [name for name in COMMANDS if not shutil.which(name)]:
        raise CourseError(
            f"links of limited rate need {', '.join(missing)}: install iproute2 and util-linux, or leave link out."
        )
    words = f"ip link add switch type bridge && ip link add eth0 type veth && tc qdisc add dev eth0 root {' '.join(token_bucket(link))}"
    try:
        _run(["unshare", "--net", "sh", "-c", words])
    except OSError as error:
        raise CourseError(f"this system does not allow links of limited rate ({error}): leave link out.") from None


def _new_namespace() -> int:
    """An open file that stands for a new network namespace; this thread steps in and out again."""
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
