"""The journeys of a user print nothing on standard error that is no problem.

Nor do those of the demo, a classifier's training on a dataset, its export, and `fill_mask`:
tests/examples/test_demo.py
"""

import sys

import pytest

from tests.processes import environment_of_a_user, run_program

HEAD = """
import sys
import roformer_tf
import keras
import tensorflow as tf
from roformer_tf.export import export_saved_model

checkpoints, folder = sys.argv[1:]
chinese = f"{checkpoints}/chinese_roformer_tiny"
texts = ["很好，下次还来", "太差了，不推荐", "服务周到", "难吃"]
labels = ["positive", "negative", "positive", "negative"]
options = {"labels": ["negative", "positive"]}
loaded = roformer_tf.RoFormerTextClassifier.from_preset(chinese, sequence_length=32, **options)


def make():
    # one layer, whose graphs are soon made
    sizes = {"num_layers": 1, "num_heads": 2, "hidden_dim": 16, "intermediate_dim": 32}
    backbone = roformer_tf.RoFormerBackbone(9216, **sizes)
    return roformer_tf.RoFormerTextClassifier(backbone, preprocessor=loaded.preprocessor, **options)
"""
JOURNEYS = {
    "classifier": """
for _ in range(4):  # and two below: TensorFlow counts the graphs of all models, and warns of five
    model = make()
    model.fit(texts, labels, batch_size=3, verbose=0)
for n in range(1, 8):
    model.predict(["好" * n] * n, verbose=0)
    model.predict(tf.data.Dataset.from_tensor_slices(texts).batch(n), verbose=0)
    model.evaluate(texts[:n], labels[:n], verbose=0)
model.save(f"{folder}/model.keras")
model.save_to_preset(f"{folder}/preset")
keras.saving.load_model(f"{folder}/model.keras").fit(texts, labels, verbose=0)
saved = roformer_tf.RoFormerTextClassifier.from_preset(f"{folder}/preset")
saved.fit(texts, labels, verbose=0)
saved.classify("好")
""",
    "export": """
preprocessor = roformer_tf.RoFormerMaskedLMPreprocessor.from_preset(chinese)
masked_lm = roformer_tf.RoFormerMaskedLM(make().backbone, preprocessor)
export_saved_model(masked_lm, f"{folder}/masked_lm")
assert tf.saved_model.load(f"{folder}/masked_lm")(["今天[MASK]气"])["tokens"].shape[:2] == (1, 1)
""",
    "quantized": """
model = make()
model.quantize("int8")
model.predict(texts, verbose=0)
model.save(f"{folder}/model.keras")
keras.saving.load_model(f"{folder}/model.keras").predict(texts, verbose=0)
""",
}


@pytest.mark.slow
def test_nothing_on_standard_error(tmp_path, repository):
    program = HEAD + "".join(f"print('{name}')\n{code}" for name, code in JOURNEYS.items())
    command = [sys.executable, "-c", program, repository / "checkpoints", tmp_path]
    done = run_program(*command, env=environment_of_a_user())
    assert done.stderr == "", done.stdout


@pytest.mark.slow
def test_nothing_of_the_graph_when_tensorflow_comes_first(tmp_path, repository):
    """TensorFlow then shows its start-up lines, which only an earlier import could silence."""
    # on any processor: its line is among them
    environment = environment_of_a_user(TF_ENABLE_ONEDNN_OPTS="1")
    program = "import tensorflow\n" + HEAD + "make().fit(texts, labels, verbose=0)"
    command = [sys.executable, "-c", program, repository / "checkpoints", tmp_path]
    done = run_program(*command, env=environment)
    assert "oneDNN" in done.stderr  # so it is shown
    assert "inference" not in done.stderr
