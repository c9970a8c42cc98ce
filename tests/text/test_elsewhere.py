"""The tokenizer in a process that has only TensorFlow, and under the other Keras backends."""

import json
import os
import subprocess
import sys

import pytest
import tensorflow as tf

from roformer_tf.text import PairPacker

ONLY_TENSORFLOW = """
import json, sys

# importing one of these raises ImportError from here on
for name in ("keras", "keras_hub", "tf_keras", "tensorflow_text", "jieba", "roformer_tf"):
    sys.modules[name] = None
import tensorflow as tf
both = tf.saved_model.load(sys.argv[1])
with open(sys.argv[2]) as file:
    texts = json.load(file)
answers = {}
for mode in ("word", "char"):
    module, ids = getattr(both, mode), []
    for i in range(0, len(texts), 500):
        batch = tf.constant(texts[i : i + 500])
        ids += module.pack(batch, batch[::-1])["token_ids"].numpy().tolist()
    rows = module.tokenize(tf.constant(texts))
    answers[mode] = {
        "ids": ids,
        "rows": rows.to_list(),
        "offsets": [x.to_list() for x in module.offsets(tf.constant(texts))],
        "texts": [text.decode() for text in module.detokenize(rows).numpy()],
    }
with open(sys.argv[3], "w") as file:
    json.dump(answers, file)
"""


class Exported(tf.Module):
    def __init__(self, tokenizer):
        super().__init__()
        self.graph, self.graph_detokenizer = tokenizer.graph, tokenizer.graph_detokenizer
        self._packer = PairPacker(
            tokenizer.start_token_id, tokenizer.end_token_id, tokenizer.pad_token_id, 32
        )

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)] * 2)
    def pack(self, first, second):
        return self._packer((self.graph(first), self.graph(second)))

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def tokenize(self, texts):
        return self.graph(texts)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def offsets(self, texts):
        return self.graph.tokenize_with_offsets(texts)

    @tf.function(input_signature=[tf.RaggedTensorSpec([None, None], tf.int32)])
    def detokenize(self, ids):
        return self.graph_detokenizer(ids)


def test_a_saved_model_needs_nothing_but_tensorflow(tokenizers, texts, tmp_path):
    sample = texts["real"][::30] + texts["hostile"][::2]
    sample = [t for t in sample if not any("\ud800" <= c <= "\udfff" for c in t)]
    both = tf.Module()
    both.word, both.char = Exported(tokenizers("word")), Exported(tokenizers("char"))
    tf.saved_model.save(both, tmp_path / "model")
    (tmp_path / "texts.json").write_text(json.dumps(sample))
    done = subprocess.run(
        [
            *(sys.executable, "-c", ONLY_TENSORFLOW),
            *(tmp_path / "model", tmp_path / "texts.json", tmp_path / "out.json"),
        ],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for mode, answers in json.loads((tmp_path / "out.json").read_text()).items():
        tokenizer, module = tokenizers(mode), getattr(both, mode)
        rows, starts, ends = tokenizer.tokenize_with_offsets(sample)
        assert answers["rows"] == rows
        assert answers["offsets"] == [rows, starts, ends]
        assert answers["texts"] == tokenizer.detokenize(tf.ragged.constant(rows, tf.int32))
        ids = []
        for i in range(0, len(sample), 500):
            batch = tf.constant(sample[i : i + 500])
            ids += module.pack(batch, batch[::-1])["token_ids"].numpy().tolist()
        assert answers["ids"] == ids


OTHER_BACKEND = """
import sys
import keras, numpy as np, tensorflow as tf
from tests.text.conftest import VOCABULARY
from roformer_tf.text import PairPacker, RoFormerTokenizer

assert keras.backend.backend() == sys.argv[1]
tokenizer = RoFormerTokenizer(VOCABULARY, word_level=False)
assert tokenizer(["追一", ""]) == [[5, 6], []]
ids = tokenizer("追一")
assert keras.ops.is_tensor(ids) and keras.ops.convert_to_numpy(ids).tolist() == [5, 6]
assert tokenizer.detokenize(ids) == "追一"
assert tokenizer.detokenize(keras.ops.convert_to_tensor([[5, 6], [6, 0]])) == ["追一", "一"]
assert tokenizer.encode(["追"])[0] == [[2, 5, 3]]
assert tokenizer.tokenize_with_offsets(["a 追"])[1] == [[0, 2]]
data = tf.data.Dataset.from_tensor_slices(["追一", "a"]).batch(2).map(tokenizer)
assert next(iter(data)).to_list() == [[5, 6], [10]]
packer = PairPacker(2, 3, 0, 6)
assert packer((ids,))["token_ids"].numpy().tolist() == [2, 5, 6, 3, 0, 0]
"""


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_other_backends(backend, repository):
    pytest.importorskip(backend)
    done = subprocess.run(
        [sys.executable, "-c", OTHER_BACKEND, backend],
        capture_output=True,
        text=True,
        cwd=repository,
        env={**os.environ, "KERAS_BACKEND": backend, "PYTHONPATH": str(repository)},
    )
    assert done.returncode == 0, done.stderr[-3000:]
