"""All but the SentencePiece tokenizer works without TensorFlow Text, which Windows does not have."""

import os
import sys

import pytest

from tests.processes import run_program

WITHOUT = """
import sys

sys.modules["tensorflow_text"] = None  # importing it raises ImportError

import importlib
import pkgutil
from pathlib import Path

import numpy as np
import roformer_tf
from roformer_tf.export import export_saved_model
from roformer_tf.models import fill_mask

for module in pkgutil.walk_packages(roformer_tf.__path__, "roformer_tf."):
    if "onnx_client" not in module.name and not module.name.endswith("__main__"):
        importlib.import_module(module.name)
for name in roformer_tf.__all__:
    getattr(roformer_tf, name)

folder, text = sys.argv[1:]
characters = sorted({*text})
vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *characters]
tokenizer = roformer_tf.RoFormerTokenizer(vocabulary, word_level=False)
backbone = roformer_tf.RoFormerBackbone(
    vocabulary_size=len(vocabulary), num_layers=1, num_heads=2, hidden_dim=16, intermediate_dim=32
)
masked_lm = roformer_tf.RoFormerMaskedLM(
    backbone, roformer_tf.RoFormerMaskedLMPreprocessor(tokenizer, sequence_length=16)
)
# eagerly: tracing takes longer than a step, and has no part in this
masked_lm.compile(run_eagerly=True)
masked_lm.fit([text] * 4, verbose=0)
[[answers]] = fill_mask(masked_lm, ["[MASK]" + text], top_k=2)
assert len(answers) == 2
classifier = roformer_tf.RoFormerTextClassifier(
    backbone, 2, roformer_tf.RoFormerTextClassifierPreprocessor(tokenizer)
)
classifier.compile(run_eagerly=True)
classifier.fit([text, text[:2]], [0, 1], verbose=0)
expected = classifier.predict([text], verbose=0)
classifier.save_to_preset(folder + "/preset")
again = roformer_tf.RoFormerTextClassifier.from_preset(folder + "/preset")
np.testing.assert_allclose(again.predict([text], verbose=0), expected, rtol=0, atol=1e-6)
served = export_saved_model(classifier, folder + "/served")

tokenizer_class = roformer_tf.RoFormerSentencePieceTokenizer
assert tokenizer_class().get_config()["name"]
proto = roformer_tf.text.train_sentencepiece(["a cat and a dog", "a dog and a cat"], 24)
try:
    tokenizer_class(proto)
except ImportError as error:
    assert "pip install tensorflow-text" in str(error), error
else:
    raise SystemExit("made a SentencePiece tokenizer without TensorFlow Text")
print("done")
"""


@pytest.mark.slow
def test_everything_else_works(tmp_path):
    options = "-W", "error::ImportWarning", "-c", WITHOUT
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8"}
    done = run_program(sys.executable, *options, tmp_path, "天地玄黄宇宙", env=environment)
    assert done.stdout.endswith("done\n")
