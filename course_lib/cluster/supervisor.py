"""The parent of a local cluster's tasks, which outlives a notebook's kernel by just long enough to clean up.

`python -m course_lib.cluster.supervisor FOLDER` starts the tasks of FOLDER/job.json,
takes commands as JSON lines on stdin and writes events as JSON lines on stdout.
When stdin ends, because whoever started it closed it or was killed, it ends
every process that the tasks started. It waits on events, never on a clock.
"""

import asyncio
import ctypes
import json
import os
import shutil
import signal
import socket
import sys
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from course_lib.cluster import limited_links, processes
from course_lib.cluster.hang_watch import different_calls, watch_for_hangs
from course_lib.cluster.job import Job
from course_lib.cluster.outcome import CONSEQUENCES
from course_lib.cluster.processes import LEAVING_SECONDS, open_reader, split_lines
from course_lib.cluster.task_process import TaskProcess, fork_task, start_task, task_environment
from course_lib.errors import CourseError

PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
LONGEST_LINE = 10_000  # bytes of one log line that are kept


class Supervisor:
    """Starts the tasks, follows them, recovers or ends the run.

    over  how the run ends: "returned", "failed", "hung", "limit", "stopped" or "mistake"; and its reason
    """

    def __init__(self, job: Job, folder: Path, events: asyncio.StreamWriter, forks: bool):
        self.job, self.folder, self.events, self.forks = job, folder, events, forks
        self.restarts = self.said = 0  # said: lines and reports of all tasks
        self.over: asyncio.Future[tuple[str, str]] = asyncio.get_running_loop().create_future()
        self.tasks: dict[str, TaskProcess] = {}
        self.changing = asyncio.Lock()  # starting, killing and recovering, one at a time
        self.background: set[asyncio.Task] = set()
        self.network = limited_links.NetworkLab(len(job.tasks), job.link) if job.link else None
        self.held: list[list[socket.socket]] = []
        self.addresses: dict[str, str] = {}

    async def run(self, commands: asyncio.StreamReader, ports: Sequence[int]) -> None:
        """From the first start until the last process has ended."""
        self.listening = self.spawn(self.follow_commands(commands))
        try:
            async with self.changing:
                self.open(ports)
                for name in self.job.tasks:
                    self.tasks[name] = self.start(name, attempt=0)
            if self.job.hang_seconds:
                self.spawn(watch_for_hangs(self))
            await asyncio.wait([self.over], timeout=self.job.resources.limit_seconds)
            programs = [self.tasks[name] for name in self.job.programs]
            late = ", ".join(task.name for task in programs if task.code is None and not task.returned)
            self.finish("limit", f"{late} did not finish within the run's {self.job.resources.limit_seconds:g} s")
        except (OSError, CourseError) as mistake:
            self.finish("mistake", str(mistake))
        finally:
            await self.end_all()
            if self.network:
                self.network.close()
        kind, reason = self.over.result()
        self.say("over", kind=kind, reason=reason, restarts=self.restarts)
        await asyncio.wait([self.listening])  # until the results are read

    def open(self, ports: Sequence[int]) -> None:
        """Take an address for every task."""
        (self.folder / "tmp").mkdir(exist_ok=True)
        if self.network:
            self.network.open()
            places = [f"{host}:{limited_links.PORT}" for host in self.network.hosts]
        else:
            for port in ports or [0] * len(self.job.tasks):
                self.held.append(processes.hold_port(port))
            places = [f"localhost:{held.getsockname()[1]}" for held, _ in self.held]
            if sys.platform != "linux":  # where a held port could not be bound again
                for held, _ in self.held:
                    held.close()
        self.addresses = dict(zip(self.job.tasks, places))
        self.say("addresses", addresses=self.addresses)

    def finish(self, kind: str, reason: str = "") -> None:
        """The first call decides how the run ends."""
        if not self.over.done():
            self.over.set_result((kind, reason))

    def leave(self) -> None:
        """Whoever started this is gone, though something may hold its pipes open."""
        self.events.transport.abort()
        self.listening.cancel()

    def say(self, event: str, **content) -> None:
        """One event for whoever started this; nobody listening is no reason to stop cleaning up."""
        if not self.events.transport.is_closing():
            self.events.write(json.dumps({"event": event, **content}).encode() + b"\n")

    async def heard(self) -> None:
        """Wait until what was said is nearly read, so that a chatty task has to wait as well."""
        with suppress(ConnectionError):
            await self.events.drain()

    def spawn(self, work: Coroutine) -> asyncio.Task:
        task = asyncio.create_task(work)
        self.background.add(task)  # the loop itself keeps only weak references
        task.add_done_callback(self.settle)
        return task

    def settle(self, task: asyncio.Task) -> None:
        self.background.discard(task)
        if not task.cancelled() and (error := task.exception()):
            self.finish("mistake", f"the cluster's supervisor failed: {type(error).__name__}: {error}")

    def start(self, name: str, attempt: int) -> TaskProcess:
        """Start one attempt at a task and follow its log, its reports and its end."""
        ours, theirs = socket.socketpair()
        with theirs:
            variables = task_environment(self.job, self.folder, self.addresses, name, attempt, theirs.fileno())
            if self.forks:
                process = fork_task(self.job, self.folder, name, variables, theirs.fileno())
            else:
                prefix = self.network.command_prefix(self.job.tasks.index(name)) if self.network else ()
                process = start_task(self.job, self.folder, name, variables, theirs.fileno(), prefix)
        task = TaskProcess(name, attempt, process)
        self.say("started", task=name, pid=process.pid, attempt=attempt)
        task.end = self.spawn(self.follow(task, ours))
        if self.job.resources.task_seconds and name in self.job.programs:
            self.spawn(self.limit(task, self.job.resources.task_seconds))
        return task

    async def follow(self, task: TaskProcess, channel: socket.socket) -> None:
        """Pass on what a task says until it ends, then judge its end."""
        reader, task.channel = await asyncio.open_connection(sock=channel)
        streams = [
            self.spawn(self.follow_reports(task, reader)),
            self.spawn(self.follow_log(task, "out", await open_reader(task.process.stdout))),
            self.spawn(self.follow_log(task, "err", await open_reader(task.process.stderr))),
        ]
        task.code = await processes.ended(task.process)
        # A lost machine loses them all, and none is there when the next attempt starts.
        processes.end_all(lambda: processes.marked(str(self.folder), task.name, task.process.pid))
        await asyncio.wait(streams, timeout=LEAVING_SECONDS)
        task.channel.close()
        self.say(
            "exited", task=task.name, code=task.code, attempt=task.attempt, asked=task.asked, returned=task.returned
        )
        if not self.over.done():
            self.spawn(self.after_end(task))

    async def follow_reports(self, task: TaskProcess, reader: asyncio.StreamReader) -> None:
        with suppress(ConnectionError):
            async for line in split_lines(reader):
                try:
                    event = json.loads(line)
                except ValueError:
                    return  # killed in the middle of its last words
                task.returned = task.returned or event["event"] == "returned"
                task.error = event.get("error", "")
                self.said += 1
                self.say(**event, attempt=task.attempt)
                await self.heard()
                if all(self.tasks[name].returned for name in self.job.programs):
                    self.finish("returned")

    async def follow_log(self, task: TaskProcess, stream: str, pipe: asyncio.StreamReader) -> None:
        with open(self.folder / "logs" / f"{task.name}.log", "a", encoding="utf-8") as log:
            async for line in split_lines(pipe, LONGEST_LINE):
                print(line, file=log, flush=True)
                self.said += 1
                self.say("line", task=task.name, stream=stream, text=line)
                await self.heard()

    async def after_end(self, task: TaskProcess) -> None:
        """Recover from a loss while the job allows it; a job that allows none outlives what it was asked to kill."""
        if task.replaced:
            return
        if not task.returned and self.restarts < self.job.restarts:
            await self.recover(task)
        elif task.returned or (task.wanted and not self.job.restarts):
            self.say("gone", task=task.name)  # nothing but a command starts it again
        else:
            await self.cause(task)
            async with self.changing:  # all fail together, and the first one asks
                if self.job.hang_seconds and not self.over.done():
                    if found := await asyncio.to_thread(different_calls, self):
                        self.say("hang", report=found.as_json())
                self.finish("failed", f"{task.name} {'was killed' if task.wanted else 'failed'}")

    async def recover(self, task: TaskProcess) -> None:
        async with self.changing:
            if self.over.done() or task.replaced:
                return
            self.restarts += 1
            names = [task.name] if self.job.rejoins(task.name) else self.job.tasks
            self.say("restarting")
            await self.replace(names)

    async def cause(self, task: TaskProcess) -> None:
        """A task that lost another one fails first, sometimes: wait for the other's own end."""
        others = [other for other in self.tasks.values() if other is not task]
        if task.error in CONSEQUENCES and others and all(other.code is None for other in others):
            await asyncio.wait(
                [other.end for other in others], timeout=LEAVING_SECONDS, return_when=asyncio.FIRST_COMPLETED
            )

    async def replace(self, names: Sequence[str]) -> None:
        """End the present attempts at some tasks, then start the next ones."""
        for task in (present := [self.tasks[name] for name in names]):
            task.replaced = True
            task.signal(signal.SIGKILL)
        await asyncio.wait([task.end for task in present])
        for name in names:
            self.tasks[name] = self.start(name, self.tasks[name].attempt + 1)

    async def limit(self, task: TaskProcess, seconds: float) -> None:
        done, _ = await asyncio.wait([task.end], timeout=seconds)
        if not done and not task.returned:
            self.finish("limit", f"{task.name} did not finish within its {seconds:g} s")

    async def follow_commands(self, commands: asyncio.StreamReader) -> None:
        try:
            async for line in split_lines(commands):
                command = json.loads(line)
                if command["command"] == "stop":  # a process that the starter forked may hold our stdin open
                    break
                async with self.changing:
                    refusal = await self.obey(**command)
                self.say("obeyed", refusal=refusal)
        finally:
            self.finish("stopped", "the cluster was stopped")

    async def obey(self, command: str, task: str) -> str:
        """Do as asked; return why not, or ""."""
        if self.over.done():
            return "" if command == "kill" else "the run is over"
        present = self.tasks[task]
        if command == "restart":
            await self.replace([task])
        elif command == "kill":
            present.signal(signal.SIGKILL)
        elif present.code is not None:
            return f"{task} has ended"
        else:
            present.signal({"pause": signal.SIGSTOP, "resume": signal.SIGCONT}[command])
        return ""

    async def end_all(self) -> None:
        """Let the tasks that returned leave, then end every process that is left."""
        async with self.changing:
            leaving = [task for task in self.tasks.values() if task.returned and task.code is None]
            for task in leaving:
                task.channel.write(b"\n")
            if leaving:
                await asyncio.wait([task.end for task in leaving], timeout=LEAVING_SECONDS)
            for task in self.tasks.values():
                task.signal(signal.SIGKILL)
            if self.tasks:
                await asyncio.wait([task.end for task in self.tasks.values()])
            # A sub-reaper also inherits those that cleared their environment.
            own = psutil.Process()
            processes.end_all(lambda: [*own.children(recursive=True), *processes.marked(str(self.folder))])


async def main(arguments: Sequence[str], owner: int, forks: bool = False) -> None:
    """Run a folder's job, wait until its results are read, and remove the folder.

    arguments  the folder, "keep" or "remove", and ports
    owner      the process that started this
    forks      tasks are forks of this process
    """
    folder, keep, ports = Path(arguments[0]), arguments[1] == "keep", list(map(int, arguments[2:]))
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, sys.stdout)
    events = asyncio.StreamWriter(transport, protocol, None, loop)
    supervisor = Supervisor(Job.from_json((folder / "job.json").read_text()), folder, events, forks)
    running = asyncio.create_task(supervisor.run(await open_reader(sys.stdin), ports))
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, supervisor.leave)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
        with suppress(OSError):  # a kernel without pidfd
            starter = os.pidfd_open(owner)
            loop.add_reader(starter, lambda: (loop.remove_reader(starter), supervisor.leave()))
    try:
        await running
    finally:
        shutil.rmtree(folder / "tmp" if keep else folder, ignore_errors=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:], os.getppid()))
