"""Loading needs little more memory than the model that is loaded into."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.checkpoint.conftest import random_variables, write_original
from tests.oracles.run_original import small_config

# In a process of its own, which builds each model once: memory that was freed before would hide what loading takes.
PROGRAM = """
import sys
import roformer_tf
from roformer_tf.checkpoint import load_checkpoint

def status(key):  # in MB
    line = next(line for line in open("/proc/self/status") if line.startswith(key))
    return int(line.split()[1]) / 1024

def make(folder):
    return roformer_tf.RoFormerMaskedLM.from_preset(folder, load_weights=False, preprocessor=None)

small, large = sys.argv[1:]
load_checkpoint(make(small), small)  # what TensorFlow takes at the first load is not the model's
model = make(large)
before = status("VmRSS")
with open("/proc/self/clear_refs", "w") as stream:
    stream.write("5")  # starts the peak again
load_checkpoint(model, large)
print(status("VmHWM") - before, model.count_params() * 4 / 2**20)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux's /proc")
def test_extra_peak_memory_of_loading(repository, tmp_path):
    rng = np.random.default_rng(0)
    folders = []
    for name, vocabulary_size, width in (("small", 200, 32), ("large", 20000, 768)):
        config = small_config(
            vocab_size=vocabulary_size, hidden_size=width, intermediate_size=4 * width
        )
        folders.append(write_original(tmp_path / name, random_variables(rng, config), config))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *map(str, folders)],
        cwd=repository,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    extra, size = map(float, done.stdout.split())
    # half of this model is one table, which must be in memory twice for a moment; a second copy of all would be 1.0
    assert extra < 0.8 * size, f"{extra:.0f} MB for a model of {size:.0f} MB"
