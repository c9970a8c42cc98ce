"""A corpus of some hundred random documents; as a program, a digest of the batches made of it.

`python -m tests.pretraining.small_corpus FOLDER WINDOW INDEX COUNT`
"""

import functools
import hashlib
import itertools
import os
import sys

import numpy as np

import roformer_tf
from roformer_tf.pretraining.batches import training_batches
from roformer_tf.pretraining.corpus import prepare_corpus
from roformer_tf.pretraining.settings import DataSettings, Stage

CHARACTERS = [chr(0x4E00 + i) for i in range(90)]


@functools.cache  # its graph takes a while to make
def tokenizer():
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "。", "，"]
    return roformer_tf.RoFormerTokenizer(special + CHARACTERS, word_level=False)


def write_texts(folder, count=400):
    """Short documents like forum posts, and every fifth long, in blocks of a text file."""
    rng = np.random.default_rng(0)
    # some characters are frequent, as in any text: a model has something to learn
    shares = 1 / np.arange(1, len(CHARACTERS) + 1)
    shares /= shares.sum()
    documents = []
    for i in range(count):
        sentences = rng.integers(1, 4) if i % 5 else rng.integers(10, 40)
        documents.append(
            "".join(
                "".join(rng.choice(CHARACTERS, size=rng.integers(2, 30), p=shares)) + "。"
                for _ in range(sentences)
            )
        )
    path = os.path.join(folder, "texts.txt")
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n\n".join(documents))
    return documents


def write_vocabulary(folder):
    tokens = "".join(f"{token}\n" for token in tokenizer().get_vocabulary())
    (folder / "vocab.txt").write_text(tokens, encoding="utf-8")


def corpus(folder, **options):
    return prepare_corpus(
        os.path.join(folder, "texts.txt"),
        os.path.join(folder, "cache"),
        shard_bytes=4096,
        **options,
    )


def settings(max_length=64, global_batch_size=8, **data):
    stage = Stage(
        max_length=max_length,
        global_batch_size=global_batch_size,
        steps=1,
        learning_rate=1e-3,
    )
    data = {"files": ("texts.txt",), "chunk_characters": 1.0, "window_batches": 4, **data}
    return stage, DataSettings(**data)


def batches(folder, start=(0, 0), seed=7, stage_index=0, service=None, threads=None, **options):
    stage, data = settings(**options)
    return training_batches(
        *(corpus(folder), tokenizer(), stage, data, seed, stage_index, start),
        service=service,
        threads=threads,
    )


def digest(batches, count):
    """A hash of the first batches, with their names, types and shapes."""
    found = hashlib.sha256()
    for batch in itertools.islice(batches, count):
        for name, value in sorted(batch.items()):
            value = np.asarray(value)
            found.update(f"{name} {value.dtype} {value.shape}".encode() + value.tobytes())
    return found.hexdigest()


if __name__ == "__main__":
    folder, *numbers = sys.argv[1:]
    window, index, count = map(int, numbers)
    print(digest(batches(folder, (window, index)), count))
