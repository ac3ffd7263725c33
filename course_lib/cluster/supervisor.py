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
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path

import psutil

from course_lib.cluster import network
from course_lib.cluster.job import Job

PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
LONGEST_LINE = 10_000  # characters of one log line that are kept
LEAVING_SECONDS = 5  # for a task that has returned to leave, and for a log's last lines to arrive


class TaskProcess:
    """One attempt at one task, and what is known of its end."""

    def __init__(self, name: str, attempt: int, process: asyncio.subprocess.Process, channel: socket.socket):
        self.name, self.attempt, self.process, self.channel = name, attempt, process, channel
        self.returned = False
        self.asked = False  # to end: its end is no failure
        self.end: asyncio.Task

    def signal(self, number: int) -> None:
        """Send a signal to the task and everything in its process group."""
        if not self.end.done():
            _signal_group(self.process.pid, number)


class Supervisor:
    """Starts the tasks, follows them, recovers or ends the run."""

    def __init__(self, job: Job, folder: Path, ports: list[int]):
        self.job, self.folder = job, folder
        self.restarts = 0
        self.reason: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.tasks: dict[str, TaskProcess] = {}
        self.changing = asyncio.Lock()  # starting, killing and recovering, one at a time
        self.background: set[asyncio.Task] = set()
        self.network = network.Laboratory(len(job.tasks), job.link) if job.link else None
        if self.network:
            self.addresses = {name: f"{host}:{network.PORT}" for name, host in zip(job.tasks, self.network.hosts)}
        else:
            self.held = [hold_port(port) for port in ports or [0] * len(job.tasks)]
            self.addresses = {name: f"localhost:{held.getsockname()[1]}" for name, held in zip(job.tasks, self.held)}
            if sys.platform != "linux":  # where a held port could not be bound again
                for held in self.held:
                    held.close()

    async def run(self, commands: asyncio.StreamReader) -> None:
        """From the first start until the last process has ended."""
        say("addresses", addresses=self.addresses)
        listening = self.spawn(self.follow_commands(commands))
        try:
            async with self.changing:
                if self.network:
                    self.network.open()
                for name in self.job.tasks:
                    self.tasks[name] = await self.start(name, attempt=0)
            reason = await asyncio.wait_for(asyncio.shield(self.reason), self.job.resources.limit_seconds)
        except TimeoutError:
            late = ", ".join(name for name in self.job.programs if not self.tasks[name].returned)
            reason = f"{late} did not finish within the run's {self.job.resources.limit_seconds:g} s"
        await self.end_all()
        if self.network:
            self.network.close()
        say("over", reason=reason, restarts=self.restarts)
        await listening  # until the results are read

    def finish(self, reason: str) -> None:
        if not self.reason.done():
            self.reason.set_result(reason)

    def spawn(self, work: Coroutine) -> asyncio.Task:
        task = asyncio.create_task(work)
        self.background.add(task)  # the loop itself keeps only weak references
        task.add_done_callback(self.background.discard)
        return task

    async def start(self, name: str, attempt: int) -> TaskProcess:
        """Start one attempt at a task and follow its log, its reports and its end."""
        ours, theirs = socket.socketpair()
        position = self.job.tasks.index(name)
        process = await asyncio.create_subprocess_exec(
            *(self.network.command_prefix(position) if self.network else ()),
            sys.executable, "-m", "course_lib.cluster", str(self.folder),
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            env=self.environment(name, attempt, theirs.fileno()), pass_fds=[theirs.fileno()], start_new_session=True,
        )  # fmt: skip
        theirs.close()
        pin(process.pid, position, len(self.job.tasks), self.job.resources.cpus)
        task = TaskProcess(name, attempt, process, ours)
        say("started", task=name, pid=process.pid, attempt=attempt)
        task.end = self.spawn(self.follow(task))
        if self.job.resources.task_seconds:
            self.spawn(self.limit(task, self.job.resources.task_seconds))
        return task

    def environment(self, name: str, attempt: int, channel: int) -> dict[str, str]:
        environment = {key: value for key, value in os.environ.items() if key != "TF_CONFIG"}
        if gpus := self.job.resources.gpus:
            first = self.job.tasks.index(name) * gpus
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, range(first, first + gpus)))
        return {
            **environment,
            "COURSE_TASK": name,
            "COURSE_ATTEMPT": str(attempt),
            "COURSE_ADDRESSES": json.dumps(self.addresses),
            "COURSE_CHANNEL": str(channel),
            "PYTHONUNBUFFERED": "1",
        }

    async def follow(self, task: TaskProcess) -> None:
        """Pass on what a task says until it ends, then judge its end."""
        reader, _ = await asyncio.open_connection(sock=task.channel)
        streams = [
            self.spawn(self.follow_reports(task, reader)),
            self.spawn(follow_log(task.name, "out", task.process.stdout)),
            self.spawn(follow_log(task.name, "err", task.process.stderr)),
        ]
        code = await task.process.wait()
        _signal_group(task.process.pid, signal.SIGKILL)  # what it started in its group
        await asyncio.wait(streams, timeout=LEAVING_SECONDS)
        say("exited", task=task.name, code=code, attempt=task.attempt, asked=task.asked)
        if not self.reason.done():
            self.spawn(self.after_end(task))

    async def follow_reports(self, task: TaskProcess, reader: asyncio.StreamReader) -> None:
        async for line in split_lines(reader):
            event = json.loads(line)
            task.returned = task.returned or event["event"] == "returned"
            say(**event, attempt=task.attempt)
            if all(name in self.tasks and self.tasks[name].returned for name in self.job.programs):
                self.finish("")

    async def after_end(self, task: TaskProcess) -> None:
        """Recover from a loss while the job allows it; otherwise a loss that nobody asked for ends the run."""
        if task.returned:
            return
        async with self.changing:
            if self.tasks[task.name] is not task:
                return  # replaced meanwhile, with the rest of the job
            if self.restarts < self.job.restarts:
                self.restarts += 1
                # A worker of parameter servers can rejoin; a collective starts again as a whole.
                alone = self.job.parameter_servers > 0 and task.name.startswith("worker")
                names = [task.name] if alone else self.job.tasks
                say("restarting", tasks=list(names), after=task.name)
                await self.replace(names)
            elif not task.asked:
                self.finish(f"{task.name} failed")
            elif all(self.tasks[name].returned or self.tasks[name].end.done() for name in self.job.programs):
                self.finish(f"{task.name} was killed and no task is left")

    async def replace(self, names) -> None:
        """End the present attempts at some tasks, then start the next ones."""
        for name in names:
            self.tasks[name].asked = True
            self.tasks[name].signal(signal.SIGKILL)
        await asyncio.wait([self.tasks[name].end for name in names])
        for name in names:
            self.tasks[name] = await self.start(name, self.tasks[name].attempt + 1)

    async def limit(self, task: TaskProcess, seconds: float) -> None:
        done, _ = await asyncio.wait([task.end], timeout=seconds)
        if not done and not task.returned:
            self.finish(f"{task.name} did not finish within its {seconds:g} s")

    async def follow_commands(self, commands: asyncio.StreamReader) -> None:
        async for line in split_lines(commands):
            command = json.loads(line)
            async with self.changing:
                await self.obey(command["command"], command["task"])
        self.finish("whoever started it is gone")

    async def obey(self, command: str, name: str) -> None:
        if command == "restart":
            await self.replace([name])
            return
        self.tasks[name].asked = self.tasks[name].asked or command == "kill"
        self.tasks[name].signal({"kill": signal.SIGKILL, "pause": signal.SIGSTOP, "resume": signal.SIGCONT}[command])

    async def end_all(self) -> None:
        """Let the tasks that returned leave, then end every process that is left."""
        ends = [task.end for task in self.tasks.values()]
        returned = [task for task in self.tasks.values() if task.returned and not task.end.done()]
        for task in returned:
            task.channel.send(b"\n")
        if returned:
            await asyncio.wait([task.end for task in returned], timeout=LEAVING_SECONDS)
        for task in self.tasks.values():
            task.asked = True
            task.signal(signal.SIGKILL)
        if ends:
            await asyncio.wait(ends)
        end_descendants()


def hold_port(number: int) -> socket.socket:
    """Reserve a port for a server in another process: bound here, and not listening.

    On Linux a second socket may bind and listen as long as both allow reuse and
    this one does not listen, and nobody else is given the port meanwhile.
    TensorFlow's and JAX's servers allow reuse.

    number  0 takes a free one
    Raises  OSError when the port is taken
    """
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("", number))
    return held


def pin(pid: int, position: int, tasks: int, cpus: int | None) -> None:
    """Give a task cores of its own, where the job asks for it and there are enough of them."""
    if cpus and hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        if tasks * cpus <= len(cores):
            os.sched_setaffinity(pid, cores[position * cpus : (position + 1) * cpus])
        else:
            os.sched_setaffinity(pid, cores[:cpus])


def end_descendants() -> None:
    """End the processes that left their task's group; as the sub-reaper this process inherits them."""
    while orphans := psutil.Process().children(recursive=True):
        for orphan in orphans:
            try:
                orphan.kill()
            except psutil.NoSuchProcess:
                continue
        psutil.wait_procs(orphans)


async def follow_log(name: str, stream: str, pipe: asyncio.StreamReader) -> None:
    async for line in split_lines(pipe):
        say("line", task=name, stream=stream, text=line[:LONGEST_LINE])


async def split_lines(reader: asyncio.StreamReader) -> AsyncIterator[str]:
    """Lines of any length, the last one also without its newline; `readline` refuses long ones."""
    rest = b""
    while chunk := await reader.read(2**16):
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line.decode(errors="replace")
    if rest:
        yield rest.decode(errors="replace")


def say(event: str, **content) -> None:
    """One event for whoever started this; nobody listening is no reason to stop cleaning up."""
    try:
        print(json.dumps({"event": event, **content}), flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _signal_group(group: int, number: int) -> None:
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        pass


async def main(folder: Path, keep: bool, ports: list[int]) -> None:
    """Run the folder's job, wait until its results are read, and remove the folder."""
    loop, commands = asyncio.get_running_loop(), asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    loop.add_signal_handler(signal.SIGTERM, commands.feed_eof)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
        # A child that the starter forked may hold our stdin open; its own end is seen here.
        loop.add_reader(os.pidfd_open(os.getppid()), commands.feed_eof)
    try:
        await Supervisor(Job.from_json((folder / "job.json").read_text()), folder, ports).run(commands)
    except OSError as error:
        say("over", reason=str(error), restarts=0)
        await commands.read()
    if not keep:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2] == "keep", [int(port) for port in sys.argv[3:]]))
