"""Functions and tokenizers, on the same inputs here and in bert4keras."""

import re

import keras
import numpy as np
import pytest

from roformer_tf.compat.bert4keras import optimizers
from tests.compat.conftest import text_of

SNIPPETS = """
import json
import os
import random
import numpy as np
from bert4keras.snippets import (
    DataGenerator, is_string, lowercase_and_normalize, open, parallel_apply, sequence_padding,
    text_segmentate, to_array, truncate_sequences,
)

def run(seed, path):
    rng = random.Random(seed)
    texts = ["".join(rng.choices("春眠不觉晓。，\\n ab ", k=rng.randrange(40))) for _ in range(200)]
    seps = ["\\n。，", "，", "", [" a", "。"]]
    found = {"segments": [
        text_segmentate(text, rng.choice([3, 7.5, 12]), rng.choice(seps), strips)
        for text in texts for strips in (None, "，。")
    ]}
    found["truncated"] = []
    for _ in range(50):
        lists = [list(range(rng.randrange(9))) for _ in range(3)]
        out = truncate_sequences(rng.randrange(4, 12), rng.choice([-1, -2, 0]), *lists)
        found["truncated"].append([out, lists])
    rows = [np.arange(rng.randrange(1, 6)) for _ in range(5)]
    found["padded"] = [
        sequence_padding(rows, mode=mode, length=length, value=7).tolist()
        for mode in ("post", "pre") for length in (None, 4)
    ]
    squares = [np.ones((n, n, 2)) for n in (1, 3, 2)]
    found["squares"] = sequence_padding(squares, seq_dims=2).tolist()
    found["small"] = [lowercase_and_normalize("Ça İ 가 Σ"), is_string("a"), to_array([1]).tolist()]
    np.random.seed(seed)
    class Plain(DataGenerator):
        def __iter__(self, random=False):
            yield from self.sample(random)
    found["random"] = list(Plain(list(range(9)), 2).__iter__(True))
    found["stream"] = list(Plain(iter(range(20)), 2, buffer_size=4).__iter__(True))
    found["parallel"] = sorted(parallel_apply(lambda x: x * x, range(30), 2, 4, dummy=True))
    np.random.seed(seed)
    found["unseeded"] = parallel_apply(
        lambda x: np.random.randint(99), range(9), 1, 4, dummy=True, random_seeds=False
    )
    index = path + ".json"
    for number, indexable in enumerate([True, index, index]):  # the last finds what the second wrote
        with open(path, encoding="utf-8", indexable=indexable) as file:
            found[f"lines {number}"] = [len(file), file[1], next(file), next(file), file[-1]]
    with open(index) as file:
        found["index"] = json.load(file)
    os.remove(index)
    return found
"""

TOKENIZERS = """
def run(folder, texts):
    found = []
    for lower in (True, False):
        tokenizer = Tokenizer(os.path.join(folder, "vocab.txt"), do_lower_case=lower)
        for text in texts:
            tokens = tokenizer.tokenize(text, maxlen=30)
            row = [tokens, tokenizer.encode(text), tokenizer.decode(tokenizer.tokens_to_ids(tokens))]
            try:
                row.append(tokenizer.rematch(text, tokens))
            except ValueError:
                row.append("ValueError")
            row.append(tokenizer.encode(text, text[::-1], maxlen=17, truncate_from="left"))
            row.append(tokenizer.encode(text, "今天", maxlen=9, pattern="SEE"))
            row.append(tokenizer.decode([], tokens=["a", "，", "[x]", "##b", "天", "c", "(", "1", ".", "2"]))
            found.append(row)
    words = Tokenizer(os.path.join(folder, "vocab.txt"), pre_tokenize=lambda s: s.split("。"),
                      token_translate={"天": "地"}, token_start=None)
    found += [words.encode(text, maxlen=20) for text in texts]
    found += [words._token_end_id, words._token_mask_id, words._vocab_size]

    class Letters(Tokenizer):
        def _word_piece_tokenize(self, word):
            return list(word)

        @staticmethod
        def _is_space(char):
            return char in "lP"

    letters = Letters(os.path.join(folder, "vocab.txt"))
    found += [letters.tokenize(text) for text in texts]
    for name in ("is_space", "is_control", "is_punctuation", "is_cjk_character", "is_redundant"):
        is_so = getattr(Tokenizer, "_" + name)
        found.append([char for char in map(chr, range(0x3100)) if is_so(char)])
    found.append([token for token in words._token_dict if Tokenizer._is_redundant(token)])
    return [*found, Tokenizer._cjk_punctuation()]
"""

BACKEND = """
import numpy as np
import tensorflow as tf
from bert4keras.backend import (
    K, align, batch_gather, multilabel_categorical_crossentropy, piecewise_linear,
    root_mean_square, sequence_masking,
)

def run(x, ids, mask):
    t, ids, mask = tf.constant(x), tf.constant(ids), tf.constant(mask)
    logits = K.reshape(t, (-1, 4))
    out = [
        K.reshape(t, (2, -1), 2), K.flatten(t, 1), K.where(t > 0, t, 0), K.where(mask, 1.0, 0.0),
        K.logsumexp(t, axis=-1), K.sum(K.square(t), axis=[0, 2]), K.mean(t > 0), K.prod(K.shape(t)),
        K.l2_normalize(t, axis=1), K.dot(logits, K.transpose(logits)), K.cumsum(t, axis=1),
        K.repeat_elements(t, 2, 1), K.one_hot(ids, 4), K.argmax(t, -1), K.clip(t, -1, 1),
        K.sparse_categorical_crossentropy(ids, t, from_logits=True),
        K.sparse_categorical_crossentropy(ids, K.softmax(t)),
        K.categorical_crossentropy(K.one_hot(ids, 4), t, from_logits=True),
        K.binary_crossentropy(K.cast(t > 0, "float32"), K.sigmoid(t)), K.expand_dims(t, 1),
        K.concatenate([t, t], axis=-1), K.stack([t, t], 1), K.max(t, axis=1), K.pow(K.abs(t), 0.5),
        K.epsilon() + K.zeros_like(t), K.arange(0, 5), K.permute_dimensions(t, (1, 0, 2)),
        sequence_masking(t, mask, -7.0, 1), sequence_masking(t, mask, -7.0, 1, t),
        align(mask, [0, -2], 4), batch_gather(t, ids[..., None]), root_mean_square(t, -1),
        multilabel_categorical_crossentropy(K.cast(t > 1, "float32"), t),
        piecewise_linear(tf.constant(7), {5: 1, 10: 0.2}), K.dtype(t), K.int_shape(t), K.ndim(t),
    ]
    return [x.numpy() if hasattr(x, "numpy") else x for x in out]
"""


@pytest.mark.oracle
def test_snippets(both, seed, tmp_path):
    path = tmp_path / "text"
    path.write_text("春眠\n不觉晓\n处处\n闻啼鸟", "utf-8")
    found, expected = both(SNIPPETS, seed=seed, path=str(path))
    for name, value in expected.items():
        assert found[name] == value, name


@pytest.mark.oracle
def test_tokenizers(both, folders, rng):
    alphabet = list("今天气不错abPlayingÇé 。，(#[]1.25\n\t\u3000\u2028\x07\ufffd\u200b한ß") + [
        "playing"
    ]
    texts = ["".join(rng.choice(alphabet, rng.integers(0, 25))) for _ in range(120)]
    texts += ["今天Playing player", "[MASK]", "", "play" * 80, "it's 3. 5"]
    common = re.sub(r"(?s)\n\nclass Recorder.*", "", text_of("classify").split('"""Classifies')[0])
    found, expected = both(common + TOKENIZERS, folder=folders["bert"], texts=texts)
    for text, mine, theirs in zip(texts * 3, found, expected, strict=False):
        assert mine == theirs, repr(text)
    assert found == expected


@pytest.mark.oracle
def test_backend(both, rng):
    x = rng.normal(size=(3, 5, 4)).astype("float32")
    ids, mask = rng.integers(0, 4, (3, 5)), np.arange(5) < np.array([[5], [3], [1]])
    found, expected = both(BACKEND, x=x, ids=ids, mask=mask)
    for number, (mine, theirs) in enumerate(zip(found, expected, strict=True)):
        # sums in another order, and logarithms
        np.testing.assert_array_equal(np.shape(mine), np.shape(theirs), str(number))
        if isinstance(theirs, np.ndarray):
            assert mine.dtype == theirs.dtype
            np.testing.assert_allclose(mine, theirs, rtol=2e-5, atol=2e-6, err_msg=str(number))
        else:
            assert mine == theirs


EXTENSIONS = {
    "decay": (["weight_decay"], {"weight_decay_rate": 0.1, "exclude_from_weight_decay": ["bias"]}),
    "lamb": (
        ["weight_decay", "layer_adaptation", "piecewise_linear_lr", "gradient_accumulation"],
        {
            "weight_decay_rate": 0.1,
            "exclude_from_layer_adaptation": ["Norm"],
            "lr_schedule": {3: 1.0, 9: 0.1},
            "grad_accum_steps": 2,
            "bias_correction": False,
        },
    ),
    "reversed": (
        ["layer_adaptation", "weight_decay"],
        {"weight_decay_rate": 0.1},
    ),
    "parts": (["parameter_wise_lr"], {"paramwise_lr_schedule": {"Norm": 3.0, "gamma": 0.5}}),
    "lazy": (["lazy_optimization"], {"include_in_lazy_optimization": ["Embedding"]}),
}


@pytest.mark.oracle
@pytest.mark.parametrize("case", EXTENSIONS)
@pytest.mark.parametrize(
    "base, learning_rate", [("Adam", 0.02), ("AdaFactor", 0.02), ("AdaFactor", None)]
)
def test_extensions(case, base, learning_rate, original, rng):
    extensions, options = EXTENSIONS[case]
    options = {"learning_rate": learning_rate, **options}
    if base == "AdaFactor":
        options.pop("bias_correction", None)
    shapes = {"Embedding-Token/embeddings": (8, 5), "Norm/gamma": (6,), "Dense/bias": (6,)}
    weights = {name: rng.normal(size=shape).astype("float32") for name, shape in shapes.items()}
    gradients = [
        {name: rng.normal(size=shape).astype("float32") for name, shape in shapes.items()}
        for _ in range(7)
    ]
    for row in gradients:
        row["Embedding-Token/embeddings"][rng.integers(0, 8, 4)] = 0
    expected = original.optimize(base, extensions, options, weights, gradients)
    cls = optimizers.BertAdam if base == "Adam" else optimizers.AdaFactor
    for extension in extensions:
        cls = getattr(optimizers, f"extend_with_{extension}")(cls)
    variables = []
    for name, value in weights.items():
        scope, own = name.split("/")
        with keras.name_scope(scope):
            variables.append(keras.Variable(value, name=own))
    optimizer = cls(**options)
    optimizer.build(variables)
    for step, (row, wanted) in enumerate(zip(gradients, expected, strict=True)):
        optimizer.apply([keras.ops.convert_to_tensor(row[name]) for name in weights])
        for variable, (name, value) in zip(variables, wanted.items(), strict=True):
            np.testing.assert_allclose(
                variable, value, rtol=3e-5, atol=3e-6, err_msg=f"{step} {name}"
            )
