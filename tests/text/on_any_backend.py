"""Checks the tokenizer under any Keras backend; `tests/models/test_backends.py` starts the processes."""

import keras
import tensorflow as tf

from roformer_tf.text import PairPacker, RoFormerTokenizer
from tests.text.conftest import VOCABULARY


def check():
    """Strings give ids through TensorFlow ops, and the backend's ids give strings."""
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
