"""Measuring: what is counted, in which order, and what is refused. No test trusts a clock."""

import ctypes
import mmap
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from course_lib import devices, measure, profiler
from course_lib.errors import CourseError

JAX_TRACE = """
import sys
from course_lib import devices; devices.simulate(2, "jax")
import jax, jax.numpy as jnp
from course_lib import measure, profiler
square = jax.jit(lambda x: x @ x)  # has a name: JAX 0.7.2 may crash when a function is dropped while it runs
with profiler.profile(sys.argv[1]):
    with jax.profiler.TraceAnnotation("my mark"):
        measure.wait({"a": [square(jnp.ones((200, 200)))]})
print(sum(event.name == "my mark" for event in profiler.read_trace(sys.argv[1])))
"""


@pytest.fixture(scope="module", autouse=True)
def four_devices():
    return devices.simulate(4)


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still except when a step moves it."""

    class Clock:
        now = 0.0

        def step(self, *durations):
            left = list(durations)

            def run():
                self.now += left.pop(0)

            return run

    clock = Clock()
    monkeypatch.setattr(measure.time, "perf_counter", lambda: clock.now)
    return clock


def test_warm_up_is_left_out_and_the_median_counts(clock):
    timing = measure.time_step(clock.step(100, 50, 1, 2, 9, 2, 2), warmup=2, repeats=5, name="step")
    assert timing.seconds == (1, 2, 9, 2, 2)
    assert timing.median_seconds == 2 and timing.spread == 0
    assert str(timing) == "step: median 2e+03 ms of 5 repeats, the middle half within 0%"
    assert measure.Timing("", (1.0, 2.0, 3.0, 4.0, 5.0)).spread == pytest.approx(2 / 3)


def test_as_often_as_nobody_asked_otherwise():
    calls = Counter()
    timing = measure.time_step(lambda: calls.update(["step"]))
    assert calls["step"] == 3 + 20 and len(timing.seconds) == 20
    assert str(timing).startswith("step: median ") and str(measure.Timing("own", (1.0,) * 3)).startswith("own: ")
    race = measure.side_by_side({name: lambda name=name: calls.update([name]) for name in "AB"})
    assert (calls["A"], calls["B"]) == (23, 23) and [timing.name for timing in race.timings] == ["A", "B"]
    pulled = iter(range(1000))
    measure.split_step(pulled, lambda batch: calls.update(["split"]))
    assert next(pulled) == 1 + 5 * 2 * (5 + 20), "one is held; alone and together, 5 passes of 5 untimed and 20"
    assert calls["split"] == 5 * 2 * (5 + 20)


def test_three_repeats_are_enough_and_the_first_that_matches_is_told():
    assert len(measure.time_step(lambda: None, warmup=0, repeats=3).seconds) == 3
    with pytest.raises(CourseError, match="^2 repeat"):
        measure.time_step(lambda: None, repeats=2)


def test_a_race_by_hand(clock):
    race = measure.side_by_side({"A": clock.step(1, 1, 1), "B": clock.step(1, 2, 3)}, warmup=0, repeats=3)
    assert repr(race) == (
        "   time / A  middle half of the rounds\nA     1.00x             1.00x to 1.00x\n"
        "B     2.00x             1.50x to 2.50x"
    )


def test_steps_take_turns():
    calls = []
    measure.side_by_side({name: lambda name=name: calls.append(name) for name in "AB"}, warmup=2, repeats=3)
    assert calls == list("AABB") + list("AB") * 3


def test_ratios_compare_within_a_round(clock):
    # The machine slows down tenfold in the third round; the ratio of the two does not change.
    race = measure.side_by_side({"A": clock.step(1, 1, 10, 10), "B": clock.step(3, 3, 30, 30)}, warmup=0, repeats=4)
    assert race.ratio("B", "A") == 3 and race.ratio("A", "B") == pytest.approx(1 / 3)
    assert "3.00x to 3.00x" in str(race) and "time / A" in str(race)
    assert race._repr_html_().count("<tr>") == 3 and "3.00x" in race._repr_html_()


def test_one_slow_round_does_not_move_the_ratio(clock):
    race = measure.side_by_side({"A": clock.step(1, 1, 1, 1), "B": clock.step(2, 2, 200, 2)}, warmup=0, repeats=4)
    assert race.ratio("B", "A") == 2


def test_too_few_repeats_are_refused():
    with pytest.raises(CourseError, match=r"1 repeat\(s\).*3 or more"):
        measure.time_step(lambda: None, repeats=1)
    with pytest.raises(CourseError, match="got no steps"):
        measure.side_by_side({})


def test_results_are_waited_for():
    waited = []

    class Array:
        def block_until_ready(self):
            waited.append("jax")

    class Tensor:
        def numpy(self):
            waited.append("tensorflow")

    class PerReplica:
        values = (Tensor(), Tensor())

    measure.wait({"a": (Array(), [Tensor()]), "b": PerReplica(), "c": 3.0, "d": None, "e": np.ones(2)})
    assert waited == ["jax"] + ["tensorflow"] * 3
    measure.time_step(Array, warmup=1, repeats=3)
    assert waited.count("jax") == 5


class ClockedBatches:
    """A data set with batches that cost time on the stopped clock."""

    def __init__(self, clock, seconds, batches=7):
        self.clock, self.seconds, self.batches = clock, seconds, batches

    def __iter__(self):
        for number in range(self.batches):
            self.clock.now += self.seconds
            yield number


@pytest.mark.parametrize(("input_seconds", "step_seconds", "bottleneck"), [(3.0, 1.0, "input"), (1.0, 3.0, "step")])
def test_a_split_step_measures_each_part(clock, input_seconds, step_seconds, bottleneck):
    def step(batch):
        clock.now += step_seconds

    split = measure.split_step(ClockedBatches(clock, input_seconds), step, steps=4, passes=3)
    assert (split.input_seconds, split.step_seconds, split.together_seconds) == (input_seconds, step_seconds, 4.0)
    assert split.bottleneck == bottleneck and split.overlap == 0
    assert f"bottleneck: {bottleneck}" in str(split) and f"{input_seconds / 4:.2f}x" in str(split)


def test_what_was_prefetched_meanwhile_is_not_timed(clock):
    """A pass begins with untimed batches: the first ones may have been ready."""

    class Buffered:
        def __iter__(self):
            for number in range(100):
                clock.now += 0.0 if number < 3 else 1.0
                yield number

    split = measure.split_step(Buffered(), lambda batch: None, warmup=6, steps=4, passes=1)
    assert split.input_seconds == split.together_seconds == 1.0


def test_hidden_input_shows_as_overlap():
    assert measure.StepSplit(2.0, 4.0, 4.0).overlap == 1
    assert measure.StepSplit(2.0, 4.0, 5.0).overlap == 0.5
    assert measure.StepSplit(2.0, 4.0, 7.0).overlap == 0


def test_an_empty_data_set_is_refused():
    with pytest.raises(CourseError, match="yields no batch"):
        measure.split_step([], lambda batch: None)


@pytest.mark.parametrize(
    ("peak", "files", "needed"),
    [
        (150, 40, 50),  # no page of a file was met
        (150, 60, 30),
        (150, 10, 50),  # pages of files that went away are not held against the call
        (90, 40, 0),
    ],
)
def test_peak_memory_by_hand(monkeypatch, tmp_path, peak, files, needed):
    """100 KiB held before the call, 40 of them pages of files."""
    status, reset = tmp_path / "status", tmp_path / "clear_refs"
    monkeypatch.setattr(measure, "Path", {"/proc/self/status": status, "/proc/self/clear_refs": reset}.get)

    def write(peak, files):
        status.write_text(f"Name:\tpython\nVmHWM:\t{peak} kB\nVmRSS:\t   100 kB\nRssFile:\t {files} kB\n")

    write(1000, 40)
    assert measure.peak_memory_bytes(lambda: write(peak, files)) == needed * 1024
    assert reset.read_text() == "5", "what sets the mark back, in the kernel's words"
    reset.unlink(), reset.mkdir()
    with pytest.raises(CourseError, match="which this machine does not offer"):
        measure.peak_memory_bytes(lambda: None)


@pytest.mark.skipif(sys.platform != "linux", reason="Linux's high-water mark")
def test_peak_memory_counts_what_was_freed_again():
    size_bytes = 200_000_000

    def work():
        np.ones(size_bytes // 8)  # freed at once

    earlier = np.ones(2 * size_bytes // 8)
    del earlier  # an earlier, higher peak must not count
    peak_bytes = measure.peak_memory_bytes(work)
    assert 0.95 * size_bytes < peak_bytes < 1.3 * size_bytes
    assert measure.peak_memory_bytes(lambda: None) < 0.1 * size_bytes


@pytest.mark.skipif(sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "mallopt"), reason="glibc's own memory")
def test_peak_memory_counts_what_glibc_would_have_kept():
    """Blocks below its threshold, which glibc has grown to more than that, freed behind one that stays."""
    code = """if True:
        import numpy as np
        from course_lib import measure

        def work():
            return [np.ones(1_000_000 // 8) for _ in range(100)]

        np.ones(30_000_000 // 8)  # freed, so that blocks of 1 MB come from the heap
        earlier, stays = work(), bytearray(100_000)
        del earlier
        print(measure.peak_memory_bytes(lambda: (work(), None)[1]), measure.peak_memory_bytes(lambda: None))
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    peak_bytes, after_bytes = map(int, done.stdout.split())
    assert 0.95e8 < peak_bytes < 1.1e8 and after_bytes < 2e6


@pytest.mark.skipif(sys.platform != "linux", reason="Linux's high-water mark")
def test_peak_memory_leaves_out_pages_of_files():
    library = max(Path(tf.__file__).parent.glob("*.so*"), key=lambda path: path.stat().st_size)
    met_bytes, made_bytes = 100_000_000, 50_000_000
    with open(library, "rb") as file, mmap.mmap(file.fileno(), met_bytes, access=mmap.ACCESS_READ) as pages:

        def work():
            np.frombuffer(pages, "uint8")[:: mmap.PAGESIZE].max()  # every page is met
            np.ones(made_bytes // 8)

        peak_bytes = measure.peak_memory_bytes(work)
    assert 0.95 * made_bytes < peak_bytes < 1.3 * made_bytes


def test_a_tensorflow_trace_is_read_back(tmp_path):
    double = tf.function(lambda x: x @ x)
    double(tf.ones((64, 64)))
    with profiler.profile(tmp_path, "tensorflow") as folder:
        for number in range(3):
            with tf.profiler.experimental.Trace("train", step_num=number, _r=1):
                double(tf.ones((64, 64)))
    events = profiler.read_trace(folder)
    steps = [event for event in events if event.name == "train"]
    assert len(steps) == 3 and all(event.duration_seconds > 0 for event in steps)
    assert [event.start_seconds for event in events] == sorted(event.start_seconds for event in events)
    assert events[0].start_seconds == 0
    inside = [event for event in events if "MatMul" in event.name]
    assert inside and all(steps[0].start_seconds <= event.start_seconds <= steps[-1].end_seconds for event in inside)


def test_the_newest_recording_is_read(tmp_path):
    for mark in ("older", "newer"):
        with profiler.profile(tmp_path / mark, "tensorflow"), tf.profiler.experimental.Trace(mark):
            tf.ones(()) + 1
    names = {event.name for event in profiler.read_trace(tmp_path)}
    assert "newer" in names and "older" not in names


def test_a_jax_trace_is_read_back(tmp_path):
    done = subprocess.run([sys.executable, "-c", JAX_TRACE, str(tmp_path)], capture_output=True, text=True, timeout=200)
    assert done.stdout == "1\n", done.stderr


def test_recordings_do_not_nest_and_a_failure_ends_one(tmp_path):
    with pytest.raises(CourseError, match="one process records one at a time"):
        with profiler.profile(tmp_path, "tensorflow"), profiler.profile(tmp_path, "tensorflow"):
            pass
    with pytest.raises(ZeroDivisionError), profiler.profile(tmp_path, "tensorflow"):
        raise ZeroDivisionError
    with profiler.profile(tmp_path, "tensorflow"):
        pass


def test_nothing_to_read_or_record_is_one_line(tmp_path):
    with pytest.raises(CourseError, match="no recording"):
        profiler.read_trace(tmp_path)
    code = (
        "from course_lib import profiler\ntry:\n    profiler.profile('x').__enter__()\n"
        "except Exception as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert "neither has been imported" in done.stdout


def event(start_seconds: float, duration_seconds: float) -> profiler.Event:
    return profiler.Event("work", "/host:CPU", "python", start_seconds, duration_seconds)


def test_covered_time_counts_overlaps_once():
    nested, apart = [event(0, 4), event(1, 2), event(3, 3)], [event(10, 1)]
    assert profiler.covered_seconds(nested + apart) == 7
    assert profiler.covered_seconds([]) == 0


def test_a_recording_by_hand(monkeypatch, tmp_path):
    """Two threads of one plane, in nanoseconds; the first event of the recording is the start of time."""

    def recorded(name, start_ns, duration_ns):
        return SimpleNamespace(name=name, start_ns=start_ns, duration_ns=duration_ns)

    main = SimpleNamespace(name="main", events=[recorded("late", 3e9 + 5, 1e9), recorded("mark", 1e9 + 5, 0)])
    other = SimpleNamespace(name="other", events=[recorded("long", 1.5e9 + 5, 2e9)])
    planes = [SimpleNamespace(name="/host:CPU", lines=[main, other])]
    read = []

    class ProfileData:
        def from_file(path):
            read.append(path)
            return SimpleNamespace(planes=planes)

    fake = SimpleNamespace(ProfileData=ProfileData)
    monkeypatch.setitem(sys.modules, "jax", SimpleNamespace(profiler=fake))
    monkeypatch.setitem(sys.modules, "jax.profiler", fake)
    recordings = [tmp_path / name / "host.xplane.pb" for name in ("b", "a")]
    for second, recording in enumerate(recordings):
        recording.parent.mkdir()
        recording.touch()
        os.utime(recording, (second, second))
    assert profiler.read_trace(tmp_path) == (
        profiler.Event("mark", "/host:CPU", "main", 0.0, 0.0),
        profiler.Event("long", "/host:CPU", "other", 0.5, 2.0),
        profiler.Event("late", "/host:CPU", "main", 2.0, 1.0),
    )
    assert read == [str(recordings[-1])]
    planes.clear()
    assert profiler.read_trace(tmp_path) == ()
    monkeypatch.setitem(sys.modules, "jax.profiler", None)
    with pytest.raises(CourseError, match="Reading a recording needs JAX 0.7 or newer"):
        profiler.read_trace(tmp_path)


@pytest.mark.parametrize(("imported", "recorder"), [(("tensorflow", "jax"), "tensorflow"), (("jax",), "jax")])
def test_what_has_been_imported_is_recorded(monkeypatch, tmp_path, imported, recorder):
    said = []
    monkeypatch.setattr(
        profiler,
        "_recorder",
        lambda framework: (lambda folder: said.append((framework, folder)), lambda: said.append("ended")),
    )
    monkeypatch.setattr(profiler, "sys", SimpleNamespace(modules=dict.fromkeys(imported)))
    with profiler.profile(tmp_path / "not" / "there") as folder:
        assert folder.is_dir() and said == [(recorder, str(tmp_path / "not" / "there"))]
    assert said[1:] == ["ended"]
    with profiler.profile(str(folder)):
        pass
    with pytest.raises(CourseError, match="profile.. records TensorFlow or JAX"):
        profiler.profile(folder, "numpy").__enter__()
