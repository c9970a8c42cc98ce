"""Loading needs little more memory than the model that is loaded into."""

import sys
from pathlib import Path

import numpy as np
import pytest

from tests.checkpoint.conftest import random_folder
from tests.processes import run_program

# A process of its own, since memory that was freed before would hide what loading needs.
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
load_checkpoint(make(small), small)  # TensorFlow's own memory of the first load does not count
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
    folders = [
        random_folder(tmp_path / name, rng, vocab_size=v, hidden_size=h, intermediate_size=4 * h)
        for name, v, h in (("small", 200, 32), ("large", 20000, 768))
    ]
    done = run_program(sys.executable, "-c", PROGRAM, *folders, cwd=repository)
    extra, size = map(float, done.stdout.split())
    # half of this model is one table, which is in memory twice for a moment; a second copy of the
    # whole model would be 1.0
    assert extra < 0.8 * size, f"{extra:.0f} MB for a model of {size:.0f} MB"
