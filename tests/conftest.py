"""Sets up every test: a quiet TensorFlow, the seed of the run, and the shared fixtures."""

import gc
import os
import tempfile
import zlib
from pathlib import Path
from unittest import mock

# The tolerances are those of a CPU, and looking for a GPU prints a page of messages.
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")  # there is a test process for each core
os.environ.setdefault("TF_NUM_INTEROP_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # of PyTorch and NumPy
# Machine code that runs once needs no optimization by LLVM, which takes a quarter of a compilation's
# time, and no fusion by MLIR, which takes a third of JAX'.
os.environ.setdefault(
    "XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"
)
# The same in every run of `make test`; `make test-slow` draws one.
SEED = int(os.environ.setdefault("ROFORMER_TF_SEED", "2104"))
if "PYTEST_XDIST_WORKER" not in os.environ:  # worker processes find it in the environment
    # The user's own cache may hold tables of older code, and building those of words takes seconds.
    CACHE = tempfile.TemporaryDirectory(prefix="roformer_tf_cache_")
    os.environ["ROFORMER_TF_CACHE"] = CACHE.name

import keras  # noqa: E402
import numpy as np  # noqa: E402
import pytest  # noqa: E402

from tests.oracles.run_original import Original  # noqa: E402

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf

    # Four logical CPUs for the tests of tf.distribute. They must be set before the first operation.
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 4
    )

ROOT = Path(__file__).resolve().parent.parent
FEWER_LIBRARIES = ROOT / "tests" / "fewer_libraries"
collect_ignore = [FEWER_LIBRARIES]  # not even to look for doctests: what it hides is for programs
# the files whose slow tests take over half a minute, the longest first
LONGEST = (
    "test_kill_points.py",
    "test_docs.py",
    "pretraining/test_multi_task.py",
    "models/test_composing.py",
    "pretraining/test_multi_worker.py",
    "text/test_original.py",
    "hostile/test_inputs.py",
    "layers/test_pages.py",
    "examples/test_finetune_tasks.py",
    "examples/test_paper_experiments.py",
    "examples/test_clue.py",
    "hostile/test_hostile.py",
    "test_quiet.py",
    "test_notebooks.py",
    "benchmarks/test_small.py",
    "browser/test_site.py",
    "browser/test_app.py",
    "pretraining/test_kills.py",
)
SEED_LINE = f"seed of this run: {SEED} (repeat it with ROFORMER_TF_SEED={SEED})"


def pytest_report_header():
    return SEED_LINE


def pytest_collection_modifyitems(items):
    """Runs files with slow tests first, the longest before all others.

    So no process is left with a long file at the end, while the other one waits.
    """
    if keras.backend.backend() != "tensorflow":
        for item in items:
            for marker in item.iter_markers("tensorflow"):
                item.add_marker(pytest.mark.skip(reason=marker.args[0]))
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    rank = {ROOT / "tests" / name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: (item.path not in slow, rank.get(item.path, len(rank))))


def pytest_terminal_summary(terminalreporter):
    if not terminalreporter.showheader:  # with -q
        terminalreporter.write_line(SEED_LINE)


@pytest.fixture(scope="session", autouse=True)
def _path_of_programs():
    """Programs that tests run find the repository from any folder, and start sooner."""
    folders = FEWER_LIBRARIES, ROOT, os.environ.get("PYTHONPATH")
    path = os.pathsep.join(str(folder) for folder in folders if folder)
    with mock.patch.dict(os.environ, PYTHONPATH=path):
        yield


@pytest.fixture(scope="session")
def repository() -> Path:
    """The top folder of the repository."""
    return ROOT


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """The folder of golden fixtures and real texts, which is not part of the repository."""
    folder = Path(os.environ.get("ROFORMER_TF_SHARED", ROOT.parent / "shared"))
    if not (folder / "golden" / "manifest.json").exists():
        pytest.skip(
            f"needs the shared fixtures: no golden/manifest.json in ROFORMER_TF_SHARED={folder}"
        )
    return folder


@pytest.fixture(scope="session")
def seed() -> int:
    """The seed of this run, printed in its header."""
    return SEED


@pytest.fixture(scope="session")
def original():
    """bert4keras itself, in one process for the whole run. It starts with the first question."""
    process = Original()
    yield process
    process.close()


@pytest.fixture
def rng(seed, request) -> np.random.Generator:
    """A generator for each test, with the same numbers whichever tests run beside it."""
    return np.random.default_rng([seed, zlib.crc32(request.node.nodeid.encode())])


@pytest.fixture
def calls_of(monkeypatch):
    """Function that returns a list, to which each call of `owner.name` adds a note from now on."""

    def watch(owner, name, note=lambda *args, **kwargs: args):
        notes, function = [], getattr(owner, name)

        def noted(*args, **kwargs):
            notes.append(note(*args, **kwargs))
            return function(*args, **kwargs)

        monkeypatch.setattr(owner, name, noted)
        return notes

    return watch


@pytest.fixture(scope="module", autouse=True)
def _little_to_collect(request):
    """Clears a module's caches, and freezes what stays for Python's garbage collector.

    Collecting all objects of a test run takes seconds, and Keras does so for each quantized layer.
    """
    gc.freeze()
    yield
    for value in list(vars(request.module).values()):
        if hasattr(value, "cache_clear") and value.__module__ == request.module.__name__:
            value.cache_clear()
    gc.collect()


@pytest.fixture(autouse=True)
def _without_graphs(request):
    """Runs the functions of a test marked `eager` without graphs."""
    eager = request.node.get_closest_marker("eager") is not None
    if eager:
        tf.config.run_functions_eagerly(True)
    yield
    if eager:
        tf.config.run_functions_eagerly(False)


@pytest.fixture(autouse=True)
def _same_start(seed):
    """Seeds Python, NumPy, TensorFlow and Keras, and restores Keras' global dtypes after a test."""
    # Seeding drops the kernels of every graph, and each takes a tenth of a second to be made again.
    with mock.patch("tensorflow.python.eager.context.pywrap_tfe.TFE_ContextClearCaches"):
        keras.utils.set_random_seed(seed)
    floatx, policy = keras.config.floatx(), keras.config.dtype_policy()
    yield
    keras.config.set_floatx(floatx)
    keras.config.set_dtype_policy(policy)
