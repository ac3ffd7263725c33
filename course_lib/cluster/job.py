"""One description of a distributed job, whatever runs it: local processes, Slurm, Kubernetes.

Standard library only; taught in notebooks/03 and 04. Names of tasks are
TensorFlow's own: `worker`, `ps` (parameter server), `chief` (here the
coordinator of parameter servers), `evaluator`.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field

from course_lib.cluster.worker_program import WorkerProgram
from course_lib.errors import CourseError

FRAMEWORKS = ("tensorflow", "jax")
BRING_FRAMEWORKS = {*FRAMEWORKS, "keras", "course_lib"}  # a program that imports one of these needs a framework


@dataclass(frozen=True)
class Resources:
    """What each task may use, and how long.

    cpus           cores per task; None leaves it to the system
    gpus           GPUs per task; it sees no others
    memory_gib     what a task is expected to hold at its peak
    limit_seconds  the whole run ends after this long
    task_seconds   a task ends this long after its start; None: with the whole run
    """

    cpus: int | None = None
    gpus: int = 0
    memory_gib: float = 1.0
    limit_seconds: float = 600.0
    task_seconds: float | None = None

    def __post_init__(self):
        if not self.gpus >= 0:
            raise CourseError(f"Resources.gpus must be at least 0, not {self.gpus!r}.")
        for name, value in asdict(self).items():
            if name != "gpus" and value is not None and not value > 0:
                raise CourseError(f"Resources.{name} must be more than 0, not {value!r}.")


@dataclass(frozen=True)
class Link:
    """A network between the tasks: each in its own network namespace, behind a link of limited rate.

    megabits  10^6 bits per second that a task can send
    """

    megabits: float


@dataclass(frozen=True)
class Job:
    """What to run, on how many tasks.

    program            a function `program(task, **arguments)`, "module:function" or "file.py:function".
                       Every worker and evaluator runs it; with parameter servers the chief runs it,
                       and the workers and servers serve. Its return value is the task's result.
    workers            tasks that compute
    parameter_servers  tasks that hold variables; they bring a chief
    evaluator          one more task beside the training, outside its collectives
    arguments          keyword arguments of the program: numbers, strings, lists, dicts (JSON)
    environment        environment variables of every task
    resources          of each task
    framework          Keras' backend: "tensorflow" or "jax"
    restarts           failures to recover from. With parameter servers a lost worker is
                       started again alone, and so is a lost evaluator; any other loss starts
                       every task again, because a collective cannot be rejoined.
    link               a network of limited rate between the tasks; local runs on Linux as root
    hang_seconds       a run in which no task makes progress for this long ends with a hang report, or
                       starts again where restarts are left; three times as long while a task computes.
                       None watches nothing
    Raises             CourseError when the description cannot work
    """

    program: WorkerProgram | Callable | str
    workers: int = 2
    parameter_servers: int = 0
    evaluator: bool = False
    arguments: Mapping[str, object] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    resources: Resources = Resources()
    framework: str = "tensorflow"
    restarts: int = 0
    link: Link | None = None
    hang_seconds: float | None = None

    def __post_init__(self):
        object.__setattr__(self, "program", WorkerProgram.of(self.program))
        object.__setattr__(self, "arguments", dict(self.arguments))
        object.__setattr__(self, "environment", dict(self.environment))
        if self.workers < 1 or self.parameter_servers < 0 or self.restarts < 0:
            raise CourseError(
                f"a job needs workers of at least 1, and parameter_servers and restarts of at least 0, "
                f"not {self.workers}, {self.parameter_servers} and {self.restarts}."
            )
        if self.framework not in FRAMEWORKS:
            raise CourseError(f"a job's framework must be one of {', '.join(FRAMEWORKS)}, not {self.framework!r}.")
        if self.framework == "jax" and self.parameter_servers:
            raise CourseError("Keras on JAX has no parameter servers: leave parameter_servers out, or use tensorflow.")
        if self.hang_seconds is not None and not self.hang_seconds > 0:
            raise CourseError(f"hang_seconds must be more than 0, or left out, not {self.hang_seconds!r}.")
        if "TF_CONFIG" in self.environment:
            raise CourseError(
                "TF_CONFIG is written for each task from the job: leave it out of environment, "
                "and give the number of workers and parameter servers instead."
            )
        if not all(isinstance(text, str) for pair in self.environment.items() for text in pair):
            raise CourseError(
                f"environment maps text to text, such as {{'OMP_NUM_THREADS': '1'}}, not {self.environment}."
            )
        try:
            json.dumps(self.arguments)
        except (TypeError, ValueError) as error:
            raise CourseError(
                f"arguments travel to other processes as JSON, so use numbers, strings, lists and dicts "
                f"({error}); make arrays and models inside the program."
            ) from None

    @property
    def tasks(self) -> tuple[str, ...]:
        """Every task's name: "worker 0", "worker 1", ..."""
        counts = {"chief": int(self.parameter_servers > 0), "worker": self.workers, "ps": self.parameter_servers}
        counts["evaluator"] = int(self.evaluator)
        return tuple(f"{kind} {index}" for kind, count in counts.items() for index in range(count))

    @property
    def programs(self) -> tuple[str, ...]:
        """The tasks that run the program; the others serve them."""
        serving = ("worker", "ps") if self.parameter_servers else ()
        return tuple(name for name in self.tasks if not name.startswith(serving))

    @property
    def needs_framework(self) -> bool:
        """Whether a task will import TensorFlow, Keras or JAX."""
        return bool(self.parameter_servers or self.program.text is None or BRING_FRAMEWORKS & self.program.imports())

    def rejoins(self, task: str) -> bool:
        """Whether a lost task can be started again alone; a collective starts again as a whole."""
        return task.startswith("evaluator") or (self.parameter_servers > 0 and task.startswith("worker"))

    def as_json(self) -> str:
        """The whole description; `Job.from_json` reads it where a task runs."""
        return json.dumps(asdict(self), indent=2)

    @classmethod
    def from_json(cls, text: str) -> "Job":
        fields = json.loads(text)
        fields["program"] = WorkerProgram(**fields["program"])
        fields["resources"] = Resources(**fields["resources"])
        fields["link"] = fields["link"] and Link(**fields["link"])
        return cls(**fields)

    def tf_config(self, task: str, addresses: Mapping[str, str]) -> dict:
        """The content of TF_CONFIG: every task's address, and which task this one is.

        task       "worker 0"
        addresses  every task's name to its "host:port"
        """
        cluster: dict[str, list[str]] = {}
        for name in self.tasks:
            if not name.startswith("evaluator"):  # it takes no part in the cluster
                cluster.setdefault(name.split()[0], []).append(addresses[name])
        kind, index = task.split()
        return {"cluster": cluster, "task": {"type": kind, "index": int(index)}}

    def task_environment(self, task: str, addresses: Mapping[str, str]) -> dict[str, str]:
        """The variables from which TensorFlow, JAX and Keras learn which task this is, and the job's own."""
        kind, index = task.split()
        environment = {"KERAS_BACKEND": self.framework, **self.environment}
        if self.framework == "tensorflow":
            environment["TF_CONFIG"] = json.dumps(self.tf_config(task, addresses))
        elif kind == "worker":
            environment["KERAS_DISTRIBUTION_JOB_ADDRESSES"] = addresses["worker 0"]
            environment["KERAS_DISTRIBUTION_NUM_PROCESSES"] = str(self.workers)
            environment["KERAS_DISTRIBUTION_PROCESS_ID"] = index
        if self.parameter_servers:
            environment["GRPC_FAIL_FAST"] = "use_caller"  # a call to a dead task fails, and is scheduled elsewhere
        return environment
