"""Windows of a corpus: groups of shards, made into sequences and batches in a graph."""

import math
import re

import tensorflow as tf

from roformer_tf.models.batches import plain
from roformer_tf.pretraining.corpus import read_shard
from roformer_tf.pretraining.objective import PretrainingObjective
from roformer_tf.pretraining.packing import form_sequences, positions_in_documents, take_sequences
from roformer_tf.text import RoFormerTokenizer, text_segmentate
from roformer_tf.text.graph_tokenizer import tokenize_with_word_starts
from roformer_tf.text.ragged_ops import lengths_to_splits

# What a seed is for; each use draws from a stream of its own.
SHARD_ORDER, CHUNK_ORDER, SEQUENCE_ORDER, BATCH_ORDER, TARGETS = range(5)
# A corpus that must be read more often than this for one window is too small to train on.
_MAX_PASSES = 1000
# A large shard is tokenized in parts of about so many bytes: the tokenizer takes some hundred times
# the space of its input.
_PART_BYTES = 2**20


class ShardWindows:
    """Base class of the windows of a corpus: which shards, in which order, in which batches.

    The shards of the corpus form an endless stream: all of them in a random order, then all of them
    in another, and so on. Window w is the w-th group of `num_shards` consecutive shards. A subclass
    makes sequences of their documents. These are shuffled and grouped to batches with the stateless
    seed (seed, window). So a batch depends on its position in the stream only.

    A subclass implements:

    * `chunks(number)`: what it makes of the shard with this number in the stream, by default its
      documents;
    * `form(chunks, window)`: a dictionary of the sequences of a window, with at least their int32
      `lengths`. The chunks are ragged by their shards;
    * `take(sequences, index)`: the sequences of these numbers, as wide as the longest of them;
    * `with_targets(batch)`: the model's inputs and labels, with the position of the batch.

    Args:
        shards: list of str. Paths.
        seed: tuple of two ints.
        num_shards: int. Shards per window.
        batch_size: int. Sequences per batch.
        max_length: int. Maximum number of tokens of a sequence.
        similar_lengths: bool. Whether a batch has sequences of similar length.
        keep_all: bool. Whether the sequences left over fill a last batch, followed by empty
            sequences, instead of being dropped. The shards are then read in their own order.
    """

    size_setting, more_needs = "global_batch_size", ""  # for a message

    def __init__(
        self, shards, seed, num_shards, batch_size, max_length, similar_lengths, keep_all=False
    ):
        self.shards = list(shards)
        self.seed = seed
        self.num_shards = num_shards
        self.batch_size = batch_size
        self.max_length = max_length
        self.similar_lengths = similar_lengths
        self.keep_all = keep_all

    def seed_for(self, use, *numbers):
        """Returns the seed of a use, such as `BATCH_ORDER`, for these numbers."""
        seed = tf.constant(self.seed, tf.int64)
        for number in (use, *numbers):
            seed = tf.random.experimental.stateless_fold_in(seed, tf.cast(number, tf.int64))
        return seed

    def random_order(self, count, use, number):
        """Returns the numbers below `count` in a random order, drawn from the seed of a use."""
        draw = tf.random.stateless_uniform([count], self.seed_for(use, number))
        return tf.argsort(draw, stable=True)

    @plain
    def sequences(self, window, num_parallel_calls):
        """Dataset of one element: the sequences of a window, as `form` returns them, and `window`."""
        first = window * self.num_shards
        last = first + self.num_shards
        if self.keep_all:
            last = tf.minimum(last, len(self.shards))
        shards = tf.data.Dataset.range(first, last).map(
            self.chunks, num_parallel_calls=num_parallel_calls, deterministic=True
        )
        return shards.ragged_batch(self.num_shards).map(
            lambda chunks: {"window": window, **self.form(chunks, window)}
        )

    def chunks(self, number):
        return self.documents(number)

    def documents(self, number):
        """Documents of the shard with this number in the endless stream: UTF-8, `(documents,)`."""
        epoch, index = number // len(self.shards), number % len(self.shards)
        if not self.keep_all:
            order = self.random_order(len(self.shards), SHARD_ORDER, epoch)
            index = order[tf.cast(index, tf.int32)]
        return read_shard(tf.constant(self.shards)[index])

    def order(self, sequences):
        """int32 tensor `(batches, batch)`: the sequences of each batch of a window."""
        size, window = self.batch_size, sequences["window"]
        count = tf.size(sequences["lengths"])
        order = self.random_order(count, SEQUENCE_ORDER, window)
        if self.keep_all:
            order = tf.pad(order, [[0, -count % size]], constant_values=count)
        order = order[: tf.size(order) // size * size]
        if self.similar_lengths:
            lengths = tf.gather(tf.concat([sequences["lengths"], [0]], 0), order)
            order = tf.gather(order, tf.argsort(lengths, stable=True))
        order = tf.reshape(order, [-1, size])
        return tf.gather(order, self.random_order(tf.shape(order)[0], BATCH_ORDER, window))

    @plain
    def batches(self, sequences, first=0):
        """Dataset of the batches of a window from number `first` on, without their targets."""
        order = self.order(sequences)
        count = tf.shape(order, tf.int64)[0]
        enough = tf.debugging.Assert(
            count > 0,
            [
                f"A window of {self.num_shards} shards does not fill a batch of {self.batch_size} "
                f"sequences of {self.max_length} tokens.{self.more_needs} Lower "
                f"`{self.size_setting}`, raise `window_batches`, or add more text. Sequences in the "
                "window:",
                tf.size(sequences["lengths"]),
            ],
        )
        with tf.control_dependencies([enough]):
            count = tf.identity(count)

        def batch(index):
            position = {"window": sequences["window"], "index": index, "count": count}
            return {**self.take(sequences, order[index]), **position}

        return tf.data.Dataset.range(tf.cast(first, tf.int64), count).map(batch)

    def with_position(self, made, batch):
        """Adds the position of a batch, the same for each sequence."""
        names = ("window", "index", "count")
        position = {name: tf.fill([self.batch_size], batch[name]) for name in names}
        return {
            name: tf.ensure_shape(value, [self.batch_size, *value.shape[1:]])
            for name, value in {**made, **position}.items()
        }


def too_few_sequences(error):
    """Returns the message of a window that does not fill a batch, or `None` for another error."""
    found = re.search(r"\[(A window of .*?)\] \[(\d+)\]", error.message, re.DOTALL)
    return found and " ".join(found.groups())


def shards_for(corpus, sequences, num_batches, batch_size, found, remedy):
    """Returns how many shards fill these batches, if all of the corpus has so many sequences.

    Raises `ValueError` if it would have to be read more than a thousand times for that.
    """
    passes = num_batches * batch_size / max(sequences, 1e-9)
    if passes > _MAX_PASSES:
        raise ValueError(
            f"{found}, far too few for {num_batches} batches of {batch_size}. {remedy}"
        )
    return max(1, math.ceil(passes * len(corpus.shards)))


class Windows(ShardWindows):
    """Forms the windows of a corpus of raw text for a `Stage`; see `ShardWindows`.

    The chunks of a window are shuffled and formed into sequences, and the sequences into batches.
    """

    def __init__(self, shards, tokenizer, stage, data, seed, num_shards, keep_all=False):
        # without packing, sequences of similar length together
        size, similar = stage.global_batch_size, data.packing == "none"
        super().__init__(shards, seed, num_shards, size, stage.max_length, similar, keep_all)
        self.tokenizer = tokenizer
        self.data = data
        self.chunk_characters = max(1, round(data.chunk_characters * stage.max_length))
        self.segmenter = None
        if data.whole_word and data.objective == "masked_lm" and not tokenizer.word_level:
            # Chinese whole words are jieba's, whose characters are separate tokens here
            words = {"word_level": True, "vocabulary": tokenizer.get_vocabulary()}
            self.segmenter = RoFormerTokenizer(**{**tokenizer.get_config(), **words}).graph
        self.objective = PretrainingObjective(
            tokenizer,
            data.objective,
            mask_rate=data.mask_rate,
            mask_token_rate=data.mask_token_rate,
            random_token_rate=data.random_token_rate,
            whole_word=data.whole_word,
            mask_special_tokens=data.mask_special_tokens,
        )

    def form(self, chunks, window):
        return form_sequences(
            {name: values.flat_values for name, values in chunks.items()},
            self.seed_for(CHUNK_ORDER, window),
            self.max_length,
            self.data.packing,
            self.tokenizer.start_token_id,
            self.tokenizer.end_token_id,
            self.objective.num_end_tokens,
        )

    def chunks(self, number):
        """Tokenizes the documents of a shard, split into chunks."""
        documents = self.documents(number)
        texts = text_segmentate(documents, self.chunk_characters, self.data.separators).flat_values
        part = tf.cumsum(tf.strings.length(texts)) // _PART_BYTES
        splits = lengths_to_splits(tf.math.bincount(part, minlength=1))
        num_parts = tf.size(splits) - 1
        types = {"token_ids": tf.int32, "lengths": tf.int32}
        if self.objective.whole_word:
            types["word_starts"] = tf.bool

        def body(i, arrays):
            tokens = self._tokenize(texts[splits[i] : splits[i + 1]])
            return i + 1, {name: arrays[name].write(i, tokens[name]) for name in types}

        arrays = {
            name: tf.TensorArray(dtype, num_parts, infer_shape=False, element_shape=[None])
            for name, dtype in types.items()
        }
        # one part at a time, or all of them would be in memory
        _, arrays = tf.while_loop(
            lambda i, _: i < num_parts, body, [0, arrays], parallel_iterations=1
        )
        return {name: tf.ensure_shape(array.concat(), [None]) for name, array in arrays.items()}

    def _tokenize(self, texts):
        tokens = {}
        if self.objective.whole_word:
            ids, starts = tokenize_with_word_starts(self.tokenizer.graph, self.segmenter, texts)
            tokens["word_starts"] = starts.values
        else:
            ids = self.tokenizer.graph(texts)
        lengths = tf.cast(ids.row_lengths(), tf.int32)
        return {**tokens, "token_ids": ids.values, "lengths": lengths}

    def take(self, sequences, index):
        return take_sequences(sequences, index, self.max_length)

    @plain
    def with_targets(self, batch):
        documents = None if self.data.packing == "none" else batch["document_ids"]
        made = self.objective(
            batch["token_ids"],
            batch["lengths"],
            self.seed_for(TARGETS, batch["window"], batch["index"]),
            documents,
            batch.get("word_starts"),
        )
        if self.data.packing == "block_diagonal":
            made["document_ids"] = documents
            made["position_ids"] = positions_in_documents(documents)
        return self.with_position(made, batch)


def shards_in_window(corpus, stage, data):
    """Computes how many shards make a window of about `window_batches` global batches.

    Assumes `chunk_characters` characters per token of a sequence. Without packing, short documents
    make more sequences than that, and so more batches. If the corpus is smaller than a window, the
    window goes through it several times.

    Raises:
        ValueError: If a window would have to read the corpus more than a thousand times.
    """
    sequences = corpus.num_characters / (data.chunk_characters * stage.max_length)
    found = (
        f"The corpus of {corpus.num_characters} characters makes about {sequences:.2g} sequences "
        f"of {stage.max_length} tokens"
    )
    remedy = "Add more text, or lower `global_batch_size` or `window_batches`."
    size = stage.global_batch_size
    return shards_for(corpus, sequences, data.window_batches, size, found, remedy)
