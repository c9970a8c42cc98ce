"""Small pretraining runs in their own processes, to be killed, and what they leave behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from tensorflow.python.util import _pywrap_util_port  # has no public name

from tests.checkpoint.conftest import read_variables
from tests.models.builders import SPECIAL
from tests.pretraining import builders

ROOT = Path(__file__).resolve().parent.parent.parent
CHARACTERS = [chr(number) for number in range(0x4E00, 0x4E30)]


def write_run(folder, lengths=(16, 40, 24), steps=5, dropout=0.1, **run):
    """Writes texts, vocabulary and settings of a small run; returns the settings' path.

    Three stages of different lengths; checkpoints fall on stage ends, between them, and neither.
    """
    rng = np.random.default_rng(3)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    texts = ["".join(rng.choice(CHARACTERS, size=rng.integers(3, 9))) + "。" for _ in range(1500)]
    documents = ["".join(texts[first : first + 5]) for first in range(0, len(texts), 5)]
    (folder / "texts.txt").write_text("\n\n".join(documents) + "\n", encoding="utf-8")
    (folder / "vocab.txt").write_text("\n".join(SPECIAL + CHARACTERS) + "\n", encoding="utf-8")
    sizes = {**builders.SIZES, "hidden_dim": 8, "intermediate_dim": 16}
    stage = {"global_batch_size": 8, "steps": steps, "learning_rate": 0.01}
    values = {
        "data": {"files": ["texts.txt"], "held_out": 0.1, "window_batches": 3},
        "model": {"vocabulary": "vocab.txt", "word_level": False, **sizes},
        "optimizer": {"weight_decay": 0.05, "clip_norm": 0.5},
        "run": {"seed": 5, "checkpoint_every": 2, "held_out_batches": 2, "deterministic": True},
        "stages": [{"max_length": length, **stage} for length in lengths],
    }
    values["model"] |= {"dropout": dropout, "attention_dropout": dropout}
    values["run"] |= run
    return builders.write_toml(folder / "settings.toml", values)


def start(settings, output, *arguments, environment=None, log=None, command="pretrain"):
    """Starts a command in a process of its own. Its messages go to the file `log`, or are dropped."""
    process_environment = {
        **os.environ,
        "CUDA_VISIBLE_DEVICES": "-1",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "TF_NUM_INTRAOP_THREADS": "2",
        "TF_NUM_INTEROP_THREADS": "2",
        # The kernels of this process, so that bits can be compared: the package turns oneDNN on where
        # TensorFlow does not, without AVX-512, but here TensorFlow was there first.
        "TF_ENABLE_ONEDNN_OPTS": str(int(_pywrap_util_port.IsMklEnabled())),
        **(environment or {}),
    }
    command = [sys.executable, "-m", "roformer_tf", command, str(settings)]
    with open(log or os.devnull, "ab") as file:
        return subprocess.Popen(
            [*command, "--output", str(output), "--quiet", *arguments],
            env=process_environment,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            cwd=ROOT,
        )


def finish(process, timeout=300):
    """Waits for a process and returns its exit status; kills it if it does not end."""
    try:
        return process.wait(timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise


def kill(process):
    """SIGKILL; returns whether it came before the process had ended."""
    running = process.poll() is None
    if running:
        process.send_signal(signal.SIGKILL)
    process.wait()
    return process.returncode == -signal.SIGKILL


def wait_for(condition, process, timeout=300, pause=0.002):
    """Waits until a condition holds; returns `False` if the process ended before."""
    deadline = time.monotonic() + timeout
    while not condition():
        if process.poll() is not None:
            return False
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {timeout} seconds")
        time.sleep(pause)
    return True


def num_logged_steps(output):
    """Steps in the log of a run."""
    log = Path(output) / "log.csv"
    return max(len(log.read_bytes().splitlines()) - 1, 0) if log.exists() else 0


def newest_step(output):
    """Step of the newest checkpoint; 0 without one."""
    names = (path.name for path in (Path(output) / "checkpoints").glob("step-*"))
    return max((int(name.removeprefix("step-")) for name in names), default=0)


def variables(output):
    """All variables of the newest checkpoint, of model and optimizer: dict from name to array."""
    newest = Path(output) / "checkpoints" / f"step-{newest_step(output):09d}"
    return read_variables(newest / "variables")


def distance(values, reference):
    """Euclidean distance of all float variables of two runs, relative to the reference."""
    assert sorted(values) == sorted(reference)
    names = [name for name in reference if reference[name].dtype.kind == "f"]
    return builders.distance(*([run[name] for name in names] for run in (values, reference)))


def check_complete(output, settings):
    """Asserts that a run has all logged steps, held-out rows and models once, and no leftovers."""
    from roformer_tf.pretraining import PretrainingSettings

    output, settings = Path(output), PretrainingSettings.from_file(settings)
    steps = [int(row["step"]) for row in builders.rows(output / "log.csv")]
    assert steps == list(range(1, settings.total_steps + 1))
    held_out = [int(row["stage"]) for row in builders.rows(output / "held_out.csv")]
    assert held_out == list(range(1, len(settings.stages) + 1))
    for index, stage in enumerate(settings.stages):
        names = {path.name for path in (output / f"stage-{index + 1}-{stage.max_length}").iterdir()}
        assert names == {
            "SHA256SUMS",
            "bert_config.json",
            "bert_model.ckpt.data-00000-of-00001",
            "bert_model.ckpt.index",
            "checkpoint",
            "vocab.txt",
        }
    left = [
        path
        for pattern in ("*", "checkpoints/*", "corpus/*/*")
        for path in output.glob(pattern)
        if path.name.startswith((".saving", ".log", ".held_out"))
    ]
    assert not left, left


def log_without_times(output):
    """The rows of log.csv and held_out.csv without what depends on the clock."""
    rows = [row for n in ("log.csv", "held_out.csv") for row in builders.rows(Path(output) / n)]
    return [[item for item in row.items() if item[0] not in builders.TIMES] for row in rows]
