"""A saved tokenizer in a process that imports only TensorFlow."""

import json
import sys

import pytest
import tensorflow as tf

from roformer_tf.text import PairPacker
from tests.processes import run_program

ONLY_TENSORFLOW = """
import json, sys

# importing one of these now raises ImportError
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


@pytest.mark.slow
def test_a_saved_model_needs_only_tensorflow(tokenizers, texts, tmp_path):
    sample = texts["real"][::30] + texts["hostile"][::2]
    sample = [t for t in sample if not any("\ud800" <= c <= "\udfff" for c in t)]
    both = tf.Module()
    both.word, both.char = Exported(tokenizers("word")), Exported(tokenizers("char"))
    tf.saved_model.save(both, tmp_path / "model")
    (tmp_path / "texts.json").write_text(json.dumps(sample))
    paths = (tmp_path / name for name in ("model", "texts.json", "out.json"))
    run_program(sys.executable, "-c", ONLY_TENSORFLOW, *paths, cwd=tmp_path)
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
