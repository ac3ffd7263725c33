"""Before training: do the machines of a cluster find, reach and understand each other? Behind `course cluster check`.

It runs on every machine at once, each with its own TF_CONFIG, on the ports that training will use. Each task connects
to every other; both say who they are, what they run and what time it is; then TensorFlow itself sums a buffer over all.
"""

import asyncio
import os
import secrets
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from course_lib import devices
from course_lib.cluster.communication import all_reduce_step, ring_bytes, ring_strategy
from course_lib.cluster.machine_links import RETRY_SECONDS, Exchange, Peer, host_and_port
from course_lib.cluster.own_task import read_tf_config
from course_lib.errors import CourseError

PACKAGES = ("tensorflow", "keras", "jax", "numpy")  # that training sees
NAME_SECONDS = 3.0
HEARD_SHARE = 0.25  # of the seconds to wait: for the others to reach this machine once this one has reached them
CLOCK_SECONDS = 1.0  # that two clocks may differ
BUFFER_BYTES = 2**22  # of the test all-reduce


@dataclass(frozen=True)
class Finding:
    """One line of the answer.

    subject  "names", "port", "reach", "lists", "versions", "clock", "folder" or "all-reduce"
    """

    subject: str
    fine: bool
    said: str

    def __str__(self) -> str:
        return f"{'ok   ' if self.fine else 'FAULT'} {self.subject}: {self.said}"


class MachineCheck:
    """One machine's part.

    config    TF_CONFIG's text
    folder    that all machines are meant to see, or None
    seconds   to wait for the others
    findings  of `run`
    """

    def __init__(self, config: str, folder: Path | None = None, seconds: float = 20.0):
        self.config, self.folder, self.seconds, self.heard_seconds = config, folder, seconds, HEARD_SHARE * seconds
        self.name, self.addresses = read_tf_config(config)
        if self.name not in self.addresses:
            raise CourseError(
                f"TF_CONFIG says that this is {self.name}, and its cluster has {', '.join(self.addresses)}: "
                f"give each machine its own place in the list."
            )
        self.findings: list[Finding] = []
        self._secret, machine = secrets.token_hex(8), devices.machine()
        installed = {name: machine.versions[name] for name in PACKAGES if machine.versions[name]}
        self._versions = {"python": machine.python, **installed}

    @property
    def fine(self) -> bool:
        return all(finding.fine for finding in self.findings)

    async def run(self) -> None:
        """All checks; what they found is in `findings`."""
        known = self._names()
        others = {name: address for name, address in self.addresses.items() if name in known and name != self.name}
        exchange = Exchange(self._hello, others)
        port = host_and_port(self.addresses[self.name])[1]
        try:
            server = await exchange.serve(port)
        except OSError as error:
            self._say(
                "port", [f"{port} of this machine cannot be used ({os.strerror(error.errno)}): end what uses it."]
            )
            return
        self._say("port", [], f"{port} is free on this machine")
        async with server:
            written = self._write_token()
            try:
                await exchange.ask_all(self.seconds)
                await exchange.wait(lambda peer: peer.heard or not peer.hello, self.heard_seconds)
                self._compare(exchange.peers)
                if written:
                    await self._read_tokens(exchange)
                exchange.fine.set_result(self.fine)
                await exchange.wait(lambda peer: peer.ready is not None or not peer.hello, self.heard_seconds)
            finally:
                await exchange.end(self.heard_seconds)
                if written:
                    self._token(self.name).unlink(missing_ok=True)
        if self.fine and all(peer.ready for peer in exchange.peers.values()):
            await self._all_reduce(exchange.peers)

    def _say(self, subject: str, faults: list[str], fine: str = "") -> None:
        """Note every fault of a subject, or that there is none."""
        self.findings += [Finding(subject, False, fault) for fault in faults] or [Finding(subject, True, fine)]

    def _token(self, name: str) -> Path:
        return self.folder / f".course-check-{name.replace(' ', '-')}"

    def _write_token(self) -> bool:
        if not self.folder:
            return False
        try:
            self._token(self.name).write_text(self._secret)
        except OSError as error:
            self._say("folder", [f"{self.folder} cannot be written on this machine ({error.strerror})."])
            return False
        return True

    def _hello(self) -> dict:
        return {
            "name": self.name,
            "addresses": self.addresses,
            "versions": self._versions,
            "time": time.time(),
            "token": self._secret,
        }

    def _names(self) -> set[str]:
        """Tasks whose host this machine knows; a name server that does not answer costs a few seconds."""
        known: set[str] = set()

        def look_up(name: str, address: str) -> None:
            with suppress(OSError):
                socket.getaddrinfo(*host_and_port(address))
                known.add(name)

        looking = [
            threading.Thread(target=look_up, args=named, daemon=True)  # the call itself has no time limit
            for named in self.addresses.items()
        ]
        until = time.monotonic() + NAME_SECONDS
        for thread in looking:
            thread.start()
        for thread in looking:
            thread.join(max(0.0, until - time.monotonic()))
        found = set(known)
        faults = [
            f"{name}'s host {host_and_port(address)[0]!r} is not known to this machine."
            for name, address in self.addresses.items()
            if name not in found
        ]
        self._say("names", faults, f"{len(self.addresses)} addresses are known")
        return found

    def _compare(self, peers: Mapping[str, Peer]) -> None:
        known = {name: peer for name, peer in peers.items() if peer.hello}
        faults = [
            f"{name} at {self.addresses[name]} is not reached: {peer.error}."
            for name, peer in peers.items()
            if not peer.hello
        ]
        faults += [
            f"{name} does not reach this machine at {self.addresses[self.name]}, though this machine reaches it."
            for name, peer in known.items()
            if not peer.heard and peer.hello["name"] == name
        ]
        rates = [f"{name} at {peer.rate * 8 / 1e6:,.0f} megabit/s" for name, peer in known.items()]
        self._say("reach", faults, f"both ways: {', '.join(rates)}")
        faults = [
            f"{self.addresses[name]} says that it is {peer.hello['name']}, and this machine's list has {name} there."
            for name, peer in known.items()
            if peer.hello["name"] != name
        ]
        faults += [
            f"{name} has another list of addresses: {' '.join(peer.hello['addresses'].values())}."
            for name, peer in known.items()
            if peer.hello["addresses"] != self.addresses
        ]
        self._say("lists", faults, "every task has the same, and its own place")
        faults = [
            f"{package} is {version} here and {peer.hello['versions'].get(package, 'missing')} on {name}."
            for name, peer in known.items()
            for package, version in self._versions.items()
            if peer.hello["versions"].get(package) != version
        ]
        self._say("versions", faults, ", ".join(f"{name} {version}" for name, version in self._versions.items()))
        late = {name: peer.offset for name, peer in known.items() if abs(peer.offset) - peer.doubt > CLOCK_SECONDS}
        faults = [f"{name}'s clock differs by {offset:+.1f} s: synchronise both." for name, offset in late.items()]
        most = max((abs(peer.offset) + peer.doubt for peer in known.values()), default=0.0)
        self._say("clock", faults, f"clocks agree to {most:.2f} s")

    async def _read_tokens(self, exchange: Exchange) -> None:
        """Does this machine see what the others have written? A network's file system may show a file late."""
        written = {name: peer.hello["token"] for name, peer in exchange.peers.items() if peer.hello}

        def seen(name: str) -> bool:
            with suppress(OSError):
                return self._token(name).read_text() == written[name]
            return False

        until = time.monotonic() + self.heard_seconds
        while (missing := [name for name in written if not seen(name)]) and time.monotonic() < until:
            await asyncio.sleep(RETRY_SECONDS)
        faults = [f"{self.folder} is not shared: what {name} wrote is not there." for name in missing]
        self._say("folder", faults, f"{self.folder} is shared")

    async def _all_reduce(self, peers: Mapping[str, Peer]) -> None:
        """Let TensorFlow sum a buffer over all workers, through the same ports."""
        if not peers or not all(name.startswith("worker") for name in self.addresses):
            self._say("all-reduce", [], "not tried: it is for two workers and more, without parameter servers")
            return
        command = [sys.executable, "-c", "from course_lib.cluster import machine_check as m; m.sum_over_all()"]
        variables = {**os.environ, "TF_CONFIG": self.config, "TF_CPP_MIN_LOG_LEVEL": "3"}
        options = {"env": variables, "capture_output": True, "text": True, "timeout": self.seconds}
        try:
            done = await asyncio.to_thread(subprocess.run, command, **options)
            measured = float(done.stdout.split()[-1])
        except subprocess.TimeoutExpired:
            proxy = next((name for name in os.environ if name.lower() in ("http_proxy", "https_proxy")), None)
            remedy = f"{proxy} is set: name the hosts in no_grpc_proxy" if proxy else "look at what is between them"
            fault = f"TensorFlow's did not end within {self.seconds:.0f} s, though the ports are open; {remedy}."
            self._say("all-reduce", [fault])
        except (ValueError, IndexError):
            last = (done.stderr.strip() or "nothing").splitlines()[-1][:200]
            self._say("all-reduce", [f"TensorFlow's failed; its last line: {last}"])
        else:
            formula = ring_bytes(len(self.addresses), BUFFER_BYTES) / min(peer.rate for peer in peers.values())
            size = f"{BUFFER_BYTES / 2**20:.0f} MiB"
            self._say("all-reduce", [], f"{size} in {measured:.3f} s, {formula:.3f} s by the slowest link's rate")


def sum_over_all() -> None:
    """In a process of its own: sum a buffer over all workers with TensorFlow, and print the median of five times."""
    strategy = ring_strategy()
    step, seconds = all_reduce_step(strategy, BUFFER_BYTES // 4), []
    for _ in range(6):  # the first one traces and connects
        began = time.perf_counter()
        total = step().numpy()
        seconds.append(time.perf_counter() - began)
    assert total[0] == strategy.num_replicas_in_sync
    print(statistics.median(seconds[1:]), flush=True)
    os._exit(0)  # TensorFlow's servers do not stop
