"""What the tests of entities, answers and choices share: a character tokenizer and small models."""

import functools

import keras
import numpy as np
import tensorflow as tf

import roformer_tf
from tests.models.builders import CHARACTERS, SIZES, SPECIAL, randomized

LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789，。！？（）()!?.-'"
VOCABULARY = [
    *SPECIAL,
    *CHARACTERS,
    *"阴晴云雨雪北京在我谁你和",
    *LETTERS,
    *(f"##{letter}" for letter in LETTERS[:36]),
]
VOCABULARY = list(dict.fromkeys(VOCABULARY))
# Accents of two kinds, ligatures, full width, emoji with modifiers, controls, and other spaces.
HARD = [
    "Cafe\u0301 in Ａｂｃ，na\u00efve ﬁne",
    "张\u200b三\x00在北\u0301京",
    "👨‍👩‍👧 in 北京🇨🇳!\ufe0f",
    "  a\tb\u3000c\n\nd ",
    "İstanbul ΣΑΣ ẞ",
    "\u0301a\u0301\u0302",
    "",
]


def backbone(kind=None, num_layers=1, **options):
    """Returns a small backbone with random weights."""
    sizes = {**SIZES, "vocabulary_size": len(VOCABULARY), "num_layers": num_layers}
    sizes |= {**(kind or {}), **options}
    return randomized(roformer_tf.RoFormerBackbone(name="backbone", **sizes))


@functools.cache
def tokenizer():
    return roformer_tf.RoFormerTokenizer(VOCABULARY, word_level=False)


def random_text(rng, length):
    characters = [*CHARACTERS, *"abc,. "]
    return "".join(rng.choice(characters, length))


def check_files(task, data, folder):
    """A `.keras` file and a preset answer as the task does; returns the task of the preset."""
    expected = task.predict(data, verbose=0)
    task.save(folder / "task.keras")
    assert keras.saving.load_model(folder / "task.keras").predict(data, verbose=0) == expected
    task.save_to_preset(folder / "preset")
    loaded = type(task).from_preset(folder / "preset")
    assert loaded.predict(data, verbose=0) == expected
    return loaded


def check_forms_of_data(task, x, y, rtol=1e-5):
    """Datasets, generators and model inputs have the loss of lists; returns it, and the dataset."""
    expected = task.evaluate(x, y, verbose=0)
    columns, labels = task.text_tensors(x), task.encode_labels(y)
    dataset = tf.data.Dataset.from_tensor_slices((columns, labels)).batch(6)
    batches = ((x, y) for _ in range(1))
    for data in ((dataset,), (batches,), task.preprocessor(columns, y=labels)):
        np.testing.assert_allclose(task.evaluate(*data, steps=1, verbose=0), expected, rtol=rtol)
    return expected, dataset


def check_lora(task, x, y):
    """A step with LoRA on inputs and labels leaves the token embedding as it is."""
    task.enable_lora(2)
    task.compile("adam")
    embeddings = task.backbone.token_embedding.embeddings
    before = embeddings.numpy().copy()
    task.train_on_batch(x, y)
    np.testing.assert_array_equal(embeddings, before)


def check_warmup(task, data, calls_of):
    """After `warmup`, `predict` traces nothing, for texts of any length."""
    traced = calls_of(type(task), "compute_outputs")
    task.warmup()
    assert traced
    traced.clear()
    task.predict(data, verbose=0)
    assert not traced
