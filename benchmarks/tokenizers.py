"""Tokenizers: texts to lists of ids, batch after batch; each in a worker process."""

import time
import zlib

from benchmarks import corpus, models

CASES = {
    # name: (library, level, batch size, way)
    "ours, batches of 128": ("ours", 128, "call"),
    "ours, batches of 2048": ("ours", 2048, "call"),
    "ours, tf.data, batches of 128": ("ours", 128, "tf.data"),
    "bert4keras": ("bert4keras", 1, "call"),
    "Hugging Face, batches of 128": ("hugging_face", 128, "call"),
    "Hugging Face, batches of 2048": ("hugging_face", 2048, "call"),
}
LIBRARIES = ("ours", "bert4keras", "hugging_face")
LEVELS = ("word", "char")


def make(library, level, vocabulary_path):
    """Makes a function from a list of strings to a list of lists of ids."""
    if library == "ours":
        import roformer_tf

        return roformer_tf.RoFormerTokenizer(vocabulary_path, word_level=level == "word")
    if library == "bert4keras":
        tokenizer = models.bert4keras_tokenizer(vocabulary_path, level == "word")
        return lambda texts: [tokenizer.encode(text)[0][1:-1] for text in texts]
    from transformers import BertTokenizerFast, RoFormerTokenizer

    with open(vocabulary_path, encoding="utf-8") as stream:
        vocabulary = {line.rstrip("\n"): i for i, line in enumerate(stream)}
    if level == "word":
        tokenizer = RoFormerTokenizer(vocab=vocabulary)  # segments with rjieba
    else:
        tokenizer = BertTokenizerFast(vocab=vocabulary)
    return lambda texts: tokenizer(texts, add_special_tokens=False)["input_ids"]


class Tokenizing:
    """Keeps the tokenizers of a worker between its commands."""

    def __init__(self, library, seed, count, vocabulary_path):
        if library == "bert4keras":
            models.import_bert4keras()
        self.iterators = {}
        self.lines = corpus.lines(count, seed)
        start = time.perf_counter()
        self.tokenizers = {level: make(library, level, vocabulary_path) for level in LEVELS}
        self.seconds_to_make = time.perf_counter() - start

    def run(self, level, size, way):
        """Times the tokenization of all lines."""
        tokenizer = self.tokenizers[level]
        if way == "tf.data":
            batches = self._iterator(level, size)
            start = time.perf_counter()
            for _ in range(-(-len(self.lines) // size)):
                next(batches)
            return {"seconds": time.perf_counter() - start}
        batches = [self.lines[i : i + size] for i in range(0, len(self.lines), size)]
        start = time.perf_counter()
        for batch in batches:
            tokenizer(batch)
        return {"seconds": time.perf_counter() - start}

    def _iterator(self, level, size):
        """Returns endless batches; made once, as starting it takes half a second.

        The two batches that may lie ready when a run begins are 6 % of the 32 batches of a run.
        """
        import tensorflow as tf

        if (level, size) not in self.iterators:
            data = tf.data.Dataset.from_tensor_slices(self.lines).batch(size).repeat()
            data = data.map(self.tokenizers[level], num_parallel_calls=models.THREADS)
            self.iterators[level, size] = iter(data)
        return self.iterators[level, size]

    def digests(self, level):
        """Returns a number for the ids of each line, to compare libraries by."""
        return [
            zlib.crc32(repr(list(map(int, ids))).encode())
            for ids in self.tokenizers[level](self.lines)
        ]
