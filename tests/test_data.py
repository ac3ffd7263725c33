"""Data: the embedded digits' cache, the downloaded sets through TFDS's own mock, the pipeline."""

import os
import signal
import subprocess
import sys
import urllib.request

import nbformat
import numpy as np
import pytest
import tensorflow as tf
from nbclient import NotebookClient

from course_lib import data, devices
from course_lib.data import digits, tfds_import
from course_lib.errors import CourseError

RECORDS = "digits-1.0.0/digits/1.0.0/digits-train.tfrecord-00000-of-00001"
PREPARE_AT_ONCE = """
import os, sys, tensorflow
from pathlib import Path
from course_lib.data import digits, digits_builder
digits.source("test")  # the slow imports, once; then four processes that start on one signal
folder, (wait_end, go_end) = Path(sys.argv[1]), os.pipe()
children = []
for _ in range(4):
    child = os.fork()
    if child == 0:
        os.read(wait_end, 1)
        builder = digits_builder.prepared(folder)
        os._exit(0 if builder.is_prepared() and builder.info.splits["train"].num_examples == 1437 else 1)
    children.append(child)
os.write(go_end, b"gogo")
print([os.waitpid(child, 0)[1] for child in children])
"""
STOP_HALF_WAY = """
import sys
from pathlib import Path
from course_lib.data import digits_builder
write = digits_builder._write_records
def write_and_stop(folder):
    write(folder)
    print("half way", flush=True)
    sys.stdin.readline()
digits_builder._write_records = write_and_stop
digits_builder.prepared(Path(sys.argv[1]))
"""


@pytest.fixture(scope="module", autouse=True)
def four_devices():
    return devices.simulate(4)


@pytest.fixture
def cache(tmp_path):
    """A cache folder with the digits prepared in it."""
    data.load("digits", "train", cache_dir=tmp_path)
    return tmp_path


def start(code: str, folder) -> subprocess.Popen:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    return subprocess.Popen([sys.executable, "-c", code, str(folder)], **pipes)


def read(cache, split: str = "train"):
    return map(np.stack, zip(*data.load("digits", split, cache_dir=cache).as_numpy_iterator()))


def leftovers(folder) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name != "digits-1.0.0"]


def zeros(examples: int) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((np.zeros((examples, 2, 2, 1), "uint8"), np.zeros(examples, "int64")))


def built(examples: int, global_batch: int, **settings) -> str:
    """What an input pipeline says that it is, or why it is refused. Of -1 examples nobody knows the number."""
    said, known = [], max(examples, 3)
    dataset = zeros(examples) if examples >= 0 else zeros(known).filter(lambda image, label: True)
    try:
        data.input_pipeline(dataset, global_batch, say=said.append, **settings)
    except CourseError as error:
        return str(error)
    (line,) = said
    return line.removeprefix("input: ").removesuffix(", scaled to [0, 1], prefetched")


@pytest.mark.parametrize(
    ("line", "examples", "global_batch", "settings"),
    [
        ("8 examples, cached, in order, batches of 4", 8, 4, {}),
        ("4 examples, cached, in order, batches of 4", 4, 4, {}),
        ("1 examples, cached, in order, batches of 1", 1, 1, {}),
        ("9 examples, cached, in order, batches of 4, the last 1 dropped", 9, 4, {}),
        ("9 examples, cached, in order, batches of 4", 9, 4, {"drop_remainder": False}),
        ("0 examples, cached, in order, batches of 4", 0, 4, {"drop_remainder": False}),
        ("9 examples, cached, reshuffled each epoch (seed 0), batches of 9", 9, 9, {"shuffle_seed": 0}),
        ("examples (count unknown), in order, batches of 2,000", -1, 2000, {"cache": False}),
        ("examples (count unknown), cached, in order, batches of 2", -1, 2, {"drop_remainder": False, "replicas": 1}),
        ("4 examples, cached, in order, batches of 2 (1 on each of 2 replicas)", 4, 2, {"replicas": 2}),
        ("9 examples, cached, in order, batches of 3 (1.5 on each of 2 replicas)", 9, 3, {"replicas": 2}),
        (
            "1,009 examples in batches of 4 leave 1 for the last batch: in shards of 1 they don't reach all 2 "
            "replicas. Use drop_remainder=True, or another batch size.",
            1009,
            4,
            {"replicas": 2, "drop_remainder": False},
        ),
        (
            "1 examples in batches of 4 leave 1 for the last batch: in shards of 1 they don't reach all 2 replicas. "
            "Use drop_remainder=True, or another batch size.",
            1,
            4,
            {"replicas": 2, "drop_remainder": False},
        ),
        (
            "A global batch of 2,000 is larger than the data set's 1,999 examples, so with drop_remainder no batch is "
            "left: use at most 1,999, or drop_remainder=False.",
            1999,
            2000,
            {},
        ),
        (
            "A global batch of 4 is larger than the data set's 0 examples, so with drop_remainder no batch is left: "
            "use at most 0, or drop_remainder=False.",
            0,
            4,
            {},
        ),
        (
            "A global batch of 3 is smaller than the 4 replicas that share it, so some would get nothing: "
            "use at least 4.",
            8,
            3,
            {"replicas": 4},
        ),
    ],
)
def test_a_pipeline_says_what_it_is_or_why_not(line, examples, global_batch, settings):
    assert built(examples, global_batch, **settings) == line


def stages(dataset) -> list[tf.compat.v1.NodeDef]:
    """What tf.data runs, from the source to the end."""
    graph = tf.raw_ops.DatasetToGraphV2(input_dataset=tf.data.experimental.to_variant(dataset))
    return [node for node in tf.compat.v1.GraphDef.FromString(graph.numpy()).node if "Dataset" in node.op]


def test_a_pipeline_caches_shuffles_batches_maps_and_prefetches_in_this_order():
    dataset = data.input_pipeline(zeros(9), 4, shuffle_seed=1, say=lambda line: None)
    wanted = ["TensorSlice", "Cache", "Shuffle", "ParallelBatch", "ParallelMap", "Prefetch", "Options"]
    assert [node.op.partition("Dataset")[0] for node in stages(dataset)] == wanted
    epoch = data.epoch_batches(np.zeros((9, 2)), np.zeros(9), 4, epoch=0)
    assert stages(epoch)[-1].op.startswith("PrefetchDataset")
    for one in (dataset, epoch):  # several workers would else share files, of which there is one
        policy = one.options().experimental_distribute.auto_shard_policy
        assert policy == tf.data.experimental.AutoShardPolicy.DATA


def test_an_unknown_number_of_examples_is_shuffled_in_a_buffer_of_ten_thousand():
    places = tf.data.Dataset.range(10_001).map(lambda place: (tf.zeros((), tf.uint8), place)).filter(lambda x, y: True)
    first, again = (
        next(data.input_pipeline(places, 10_001, shuffle_seed=seed, say=lambda line: None).as_numpy_iterator())[1]
        for seed in (3, 3)
    )
    np.testing.assert_array_equal(first, again)
    assert sorted(first) == list(range(10_001)) and max(first[:1000]) > 9000 and first[0] != 10_000


def test_an_epochs_order_is_numpys_permutation_of_seed_and_epoch():
    for settings, seeds in (({}, [0, 2]), ({"seed": 5}, [5, 2])):
        batches = data.epoch_batches(np.zeros(10), np.arange(10), 3, epoch=2, **settings)
        found = np.concatenate([labels for _, labels in batches.as_numpy_iterator()])
        np.testing.assert_array_equal(found, np.random.default_rng(seeds).permutation(10)[:9])


def test_the_embedded_digits_are_scikit_learns():
    from sklearn.datasets import load_digits

    whole = load_digits()
    for split, rows in (("train", slice(0, 1437)), ("test", slice(1437, 1797))):
        images, labels = digits.source(split)
        np.testing.assert_array_equal(images[..., 0], np.rint(whole.images[rows] * 255 / 16))
        np.testing.assert_array_equal(labels, whole.target[rows])
        assert (images.shape[1:], images.dtype, labels.dtype) == ((8, 8, 1), "uint8", "int32")
    assert (digits.CLASSES, digits.SHAPE) == (10, (8, 8, 1))


def test_the_text_is_pydocs_topics_in_alphabetical_order():
    from pydoc_data.topics import topics

    assert data.text_corpus() == "\n\n".join(text for _, text in sorted(topics.items()))


def test_the_records_lie_in_the_courses_cache_unless_told_otherwise(tmp_path, monkeypatch):
    from course_lib.data import digits_builder

    asked = []
    monkeypatch.setattr(devices, "cache_folder", lambda: tmp_path / "usual" / "cache")
    monkeypatch.setattr(digits_builder, "_write_records", lambda folder: (asked.append(folder), folder.mkdir()))
    builder = digits_builder.prepared(tmp_path / "not" / "there" / "yet")
    with pytest.raises(AssertionError, match="could not find data|not found|prepare"):
        data.load("digits", "test")
    assert [(one.name, one.parent.name[:11]) for one in asked] == [("records", ".preparing-")] * 2
    places = [one.parent.parent for one in asked]
    assert places == [tmp_path / "not" / "there" / "yet", tmp_path / "usual" / "cache"]
    assert all((place / "digits-1.0.0").is_dir() and leftovers(place) == [] for place in places)
    assert builder.info.features["label"].num_classes == 10 and builder.info.supervised_keys == ("image", "label")
    assert builder.info.description.startswith("Handwritten digits, 8 x 8 x 1 uint8")


def test_the_server_is_asked_once_and_briefly(monkeypatch):
    import tensorflow_datasets as tfds

    asked = []

    def unreachable(request, timeout):
        asked.append((request.method, timeout, request.full_url[:4]))
        raise OSError("unplugged")

    monkeypatch.setattr(urllib.request, "urlopen", unreachable)
    monkeypatch.setattr(tfds.core.DatasetBuilder, "is_prepared", lambda builder: False)
    with pytest.raises(CourseError) as refused:
        data.load("mnist", "train")
    assert asked == [("HEAD", 20, "http")]
    assert str(refused.value) == (
        "mnist is not on this machine and can't be downloaded (unplugged): connect to the network and run this again, "
        'or use "digits", which needs none.'
    )


def test_a_download_that_fails_is_one_line(monkeypatch):
    import tensorflow_datasets as tfds

    def fails(builder):
        raise EOFError("x" * 300)

    monkeypatch.setattr(urllib.request, "urlopen", lambda request, timeout: open(os.devnull))
    monkeypatch.setattr(tfds.core.DatasetBuilder, "is_prepared", lambda builder: False)
    monkeypatch.setattr(tfds.core.DatasetBuilder, "download_and_prepare", fails)
    with pytest.raises(CourseError) as refused:
        data.load("mnist", "train")
    assert str(refused.value) == (
        f"mnist could not be downloaded and prepared (EOFError: {'x' * 200}): run this again, "
        'or use "digits", which needs no network.'
    )


@pytest.mark.parametrize(("split", "count"), [("train", 1437), ("test", 360)])
def test_digits_are_the_same_through_tfds_and_as_arrays(cache, split, count):
    images, labels = read(cache, split)
    expected_images, expected_labels = data.arrays("digits", split)
    assert images.shape == (count, 8, 8, 1) and images.dtype == np.uint8 and images.max() == 255
    np.testing.assert_array_equal(images / np.float32(255), expected_images)
    np.testing.assert_array_equal(labels, expected_labels)
    assert expected_images.dtype == np.float32 and expected_images.max() == 1 and np.ptp(expected_labels) == 9


def test_preparing_displays_nothing_in_a_notebook(tmp_path):
    """TFDS would display its bars, which redirecting the streams does not hold back."""
    source = f"from course_lib import data\nprint(len(data.load('digits', 'train', cache_dir={str(tmp_path)!r})))"
    cells = [
        nbformat.v4.new_code_cell("from course_lib import devices\ndevices.simulate(1)"),
        nbformat.v4.new_code_cell(source),
    ]
    NotebookClient(nbformat.v4.new_notebook(cells=cells), kernel_name="python3", timeout=300).execute()
    assert [(output.output_type, output.get("text")) for output in cells[1].outputs] == [("stream", "1437\n")]


def test_an_intact_cache_is_not_written_again(cache):
    before = (cache / RECORDS).stat()
    data.load("digits", "test", cache_dir=cache)
    assert (cache / RECORDS).stat() == before
    assert leftovers(cache) == []


def test_four_processes_prepare_at_once(tmp_path):
    done = start(PREPARE_AT_ONCE, tmp_path)
    assert done.communicate(timeout=200)[0] == "[0, 0, 0, 0]\n"
    assert leftovers(tmp_path) == []
    images, _ = read(tmp_path)
    np.testing.assert_array_equal(images, digits.source("train")[0])


def test_a_process_killed_half_way_does_no_harm(tmp_path):
    process = start(STOP_HALF_WAY, tmp_path)
    assert process.stdout.readline() == "half way\n"
    process.send_signal(signal.SIGKILL)
    process.communicate()
    (abandoned,) = leftovers(tmp_path)
    assert not (tmp_path / "digits-1.0.0").exists()
    images, _ = read(tmp_path)
    np.testing.assert_array_equal(images, digits.source("train")[0])
    assert leftovers(tmp_path) == [abandoned]  # another process may be at work there


def test_an_altered_record_is_never_read_as_data(cache):
    """TFRecord's own checksum: a damaged cache is an error, not other digits."""
    whole = (cache / RECORDS).read_bytes()
    (cache / RECORDS).write_bytes(whole[:1000] + bytes([whole[1000] ^ 1]) + whole[1001:])
    with pytest.raises(tf.errors.DataLossError, match="corrupted record"):
        list(read(cache))


def test_a_cache_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CourseError, match="can't be written.*pass another folder as cache_dir"):
        data.load("digits", "train", cache_dir=tmp_path / "file")


def test_other_source_arrays_are_refused(monkeypatch):
    monkeypatch.setattr(digits, "LABELS_SHA256", "0" * 64)
    with pytest.raises(CourseError, match="other labels than expected.*reinstall"):
        data.arrays("digits", "train")


@pytest.mark.parametrize("text", [None, "no,numbers"])
def test_a_missing_or_broken_file_of_digits_is_one_line(text, monkeypatch, tmp_path):
    if text:
        (tmp_path / "digits.csv").write_text(text)
    monkeypatch.setattr(digits, "FILE", tmp_path / "digits.csv")
    with pytest.raises(CourseError, match="cannot be read from .*digits.csv .*: reinstall it"):
        data.arrays("digits", "train")


def test_without_scikit_learn_the_digits_name_it(monkeypatch):
    monkeypatch.setattr(digits.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(CourseError, match="not installed: `pip install scikit-learn`"):
        data.arrays("digits", "train")


@pytest.mark.parametrize("module", ["tensorflow", "tensorflow_datasets"])
def test_reading_through_tf_data_names_the_package_that_is_missing(module, monkeypatch):
    found = tfds_import.importlib.util.find_spec
    monkeypatch.setattr(tfds_import.importlib.util, "find_spec", lambda name: None if name == module else found(name))
    with pytest.raises(CourseError, match=f"needs {module.replace('_', '-')}, which is not installed here"):
        tfds_import.import_tfds()


def test_arrays_of_the_digits_need_no_framework():
    code = (
        "import sys; from course_lib import data; data.arrays('digits', 'test'); "
        "print({'tensorflow', 'tensorflow_datasets', 'jax', 'sklearn'} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout == "set()\n", done.stderr


@pytest.mark.parametrize(
    ("name", "shape"), [("cifar10", (32, 32, 3)), ("mnist", (28, 28, 1)), ("fashion_mnist", (28, 28, 1))]
)
def test_downloaded_sets_go_through_tfds(monkeypatch, name, shape):
    import tensorflow_datasets as tfds

    asked = []
    monkeypatch.setattr(
        urllib.request, "urlopen", lambda request, timeout: asked.append(request.full_url) or open(os.devnull)
    )
    with tfds.testing.mock_data(num_examples=7):
        images, labels = next(iter(data.load(name, "train").batch(7)))
        copies, copied_labels = data.arrays(name, "test")
    assert images.shape == (7, *shape) and images.dtype == tf.uint8 and labels.shape == (7,)
    assert (
        copies.shape == (7, *shape)
        and copies.dtype == np.float32
        and copies.max() <= 1
        and copied_labels.dtype == np.int32
    )
    assert all(address.startswith("http") for address in asked)


def test_a_server_that_answers_anything_is_a_network(monkeypatch):
    import tensorflow_datasets as tfds

    def refuses(request, timeout):
        raise urllib.error.HTTPError(request.full_url, 405, "Method Not Allowed", {}, None)

    monkeypatch.setattr(urllib.request, "urlopen", refuses)
    with tfds.testing.mock_data(num_examples=3):
        assert len(list(data.load("mnist", "train"))) == 3


@pytest.fixture
def no_network(monkeypatch):
    def unreachable(request, timeout):
        raise urllib.error.URLError("Name or service not known")

    monkeypatch.setattr(urllib.request, "urlopen", unreachable)


def test_no_network_names_the_data_set_and_the_remedy(no_network):
    with pytest.raises(CourseError, match='cifar10 .*Name or service not known.*or use "digits"'):
        data.load("cifar10", "train")


def test_a_fallback_is_announced(no_network, cache):
    said = []
    dataset = data.load("cifar10", "train", fallback="digits", cache_dir=cache, say=said.append)
    assert dataset.element_spec[0].shape == (8, 8, 1)
    (line,) = said
    assert "cifar10" in line and line.endswith("Using digits instead.")


def test_unknown_names_list_the_known_ones():
    for call in (data.load, data.arrays):
        with pytest.raises(CourseError, match="'imagenet'.*digits, cifar10, mnist, fashion_mnist"):
            call("imagenet", "train")
    with pytest.raises(CourseError, match="'valid'"):
        data.arrays("digits", "valid")


def test_the_text_is_long_and_always_the_same():
    assert len(data.text_corpus()) > 300_000
    assert data.text_corpus() == data.text_corpus()


def pipeline(folder, global_batch=128, **options):
    said = []
    dataset = data.input_pipeline(
        data.load("digits", "train", cache_dir=folder), global_batch, say=said.append, **options
    )
    return dataset, said[0]


def test_the_first_batch_comes_from_the_whole_data_set():
    """Its buffer holds all: with half as large a one, the first 50 of 1,000 would be among the first 550."""
    places = tf.data.Dataset.range(1000).map(lambda place: (tf.zeros((1, 1, 1), tf.uint8), place))
    dataset = data.input_pipeline(places, 50, shuffle_seed=0, say=lambda line: None)
    _, first = next(dataset.as_numpy_iterator())
    assert max(first) >= 900 and min(first) < 100


def test_the_pipeline_gives_every_example_once_an_epoch(cache):
    dataset, line = pipeline(cache, drop_remainder=False, shuffle_seed=3)
    first, second = (np.concatenate([labels for _, labels in dataset.as_numpy_iterator()]) for _ in range(2))
    _, expected = data.arrays("digits", "train")
    assert (first != expected).any() and (first != second).any(), "not shuffled, or not again"
    np.testing.assert_array_equal(np.bincount(first), np.bincount(expected))
    np.testing.assert_array_equal(np.bincount(second), np.bincount(expected))
    assert (
        line
        == "input: 1,437 examples, cached, reshuffled each epoch (seed 3), batches of 128, scaled to [0, 1], prefetched"
    )


def test_the_pipeline_is_the_arrays_in_order_and_scaled(cache):
    dataset, line = pipeline(cache, replicas=4, cache=False)
    images, labels = (np.concatenate(parts) for parts in zip(*dataset.as_numpy_iterator()))
    expected_images, expected_labels = data.arrays("digits", "train")
    np.testing.assert_allclose(images, expected_images[:1408], rtol=1e-7)  # one division each way: the last bit
    np.testing.assert_array_equal(labels, expected_labels[:1408])
    said = "input: 1,437 examples, in order, batches of 128 (32 on each of 4 replicas), the last 29 dropped"
    assert line == f"{said}, scaled to [0, 1], prefetched"


def test_the_same_seed_gives_the_same_order(cache):
    orders = [
        [labels.tolist() for _, labels in pipeline(cache, shuffle_seed=seed)[0].as_numpy_iterator()]
        for seed in (1, 1, 2)
    ]
    assert orders[0] == orders[1] != orders[2]


def test_the_source_is_read_once_and_the_map_runs_on_batches_each_epoch():
    reads, maps = tf.Variable(0), tf.Variable(0)

    def counted(image, label):
        reads.assign_add(1)
        return image, label

    def augment(images, labels):
        maps.assign_add(1)
        assert images.shape[1:] == (8, 8, 1)
        return 1 - images, labels

    images, labels = digits.source("test")
    source = tf.data.Dataset.from_tensor_slices((images, labels)).map(counted)
    dataset = data.input_pipeline(source, 60, map_fn=augment, say=lambda line: None)
    inverted = [batch for _ in range(2) for batch, _ in dataset]
    np.testing.assert_allclose(inverted[0], 1 - images[:60] / np.float32(255), atol=1e-7)
    assert (reads.numpy(), maps.numpy()) == (360, 12), "each example once, each of 6 batches in 2 epochs"


def test_batches_without_sense_are_refused(cache):
    pipeline(cache, global_batch=4, replicas=4)  # one row each
    with pytest.raises(CourseError, match="global batch of 3 is smaller than the 4 replicas.*at least 4"):
        pipeline(cache, global_batch=3, replicas=4)
    with pytest.raises(CourseError, match="2,000 is larger than the data set's 1,437 examples.*drop_remainder=False"):
        pipeline(cache, global_batch=2000)
    dataset, _ = pipeline(cache, global_batch=2000, drop_remainder=False)
    assert len(list(dataset)) == 1


@pytest.mark.parametrize("rows", range(1, 25))
def test_a_last_batch_is_refused_exactly_when_it_misses_a_replica(rows):
    """TensorFlow itself shows how it divides the rows."""
    images, labels = np.zeros((64 + rows, 8, 8, 1), "uint8"), np.zeros(64 + rows, "int64")
    examples = tf.data.Dataset.from_tensor_slices((images, labels))
    strategy = tf.distribute.MirroredStrategy(devices.simulate(4).names)
    *_, (_, shards) = strategy.experimental_distribute_dataset(examples.batch(64))
    reached = [len(shard) for shard in strategy.experimental_local_results(shards)]
    try:
        data.input_pipeline(examples, 64, drop_remainder=False, replicas=4, say=lambda line: None)
        refused = ""
    except CourseError as error:
        refused = str(error)
    assert bool(refused) == (0 in reached), reached
    assert not refused or f"leave {rows} for the last batch" in refused


def test_dropping_the_last_batch_is_always_fine():
    examples = tf.data.Dataset.from_tensor_slices((np.zeros((66, 8, 8, 1), "uint8"), np.zeros(66, "int64")))
    assert len(data.input_pipeline(examples, 64, replicas=4, say=lambda line: None)) == 1


def test_an_epochs_order_depends_on_the_epoch_alone():
    images, labels = np.arange(40.0).reshape(10, 4), np.arange(10)

    def order(**settings):
        return [y.numpy().tolist() for _, y in data.epoch_batches(images, labels, 3, **settings)]

    first = order(epoch=0)
    assert order(epoch=0) == first  # however often it was read before
    assert [len(batch) for batch in first] == [3, 3, 3]  # the tenth is left out
    assert len({label for batch in first for label in batch}) == 9
    assert order(epoch=1) != first and order(epoch=0, seed=1) != first
    for x, y in data.epoch_batches(images, labels, 3, epoch=2):
        np.testing.assert_array_equal(x[:, 0], 4.0 * np.asarray(y))  # an image keeps its label
