"""Windows of shards: the order in which documents are read, and how they become batches."""

import math

import tensorflow as tf

from roformer_tf.pretraining.corpus import read_shard

# What a seed is for; each use draws from a stream of its own.
SHARD_ORDER, CHUNK_ORDER, SEQUENCE_ORDER, BATCH_ORDER, TARGETS = range(5)
# A corpus that must be read more often than this for one window is too small to train on.
_MAX_PASSES = 1000


# There is nothing for AutoGraph to convert, and looking takes seconds.
plain = tf.autograph.experimental.do_not_convert


class ShardWindows:
    """Base class of the windows of a corpus: which shards, in which order, in which batches.

    The shards of the corpus form an endless stream: all of them in a random order, then all of them
    in another, and so on. Window w is the w-th group of `num_shards` consecutive shards. A subclass
    makes `sequences` of their documents. These are shuffled and grouped to batches with the
    stateless seed (seed, window). So a batch depends on its position in the stream only.

    A subclass implements `chunks(number)`, what it makes of a shard, by default its documents;
    `form(chunks, window)`, which makes of those of a window, ragged by their shards, a dictionary of
    sequences with at least their int32 `lengths`; `take(sequences, index)`, which returns some of
    them; and `with_targets(batch)`.

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

    def map_shards(self, window, function, num_parallel_calls):
        """Dataset of what `function` makes of the number of each shard of a window."""
        first = window * self.num_shards
        last = first + self.num_shards
        if self.keep_all:
            last = tf.minimum(last, len(self.shards))
        return tf.data.Dataset.range(first, last).map(
            function, num_parallel_calls=num_parallel_calls, deterministic=True
        )

    @plain
    def sequences(self, window, num_parallel_calls):
        """Dataset of one element: the sequences of a window, as `form` returns them, and `window`."""
        shards = self.map_shards(window, self.chunks, num_parallel_calls)
        return shards.ragged_batch(self.num_shards).map(
            lambda chunks: {"window": window, **self.form(chunks, window)}
        )

    def chunks(self, number):
        """What is made of the shard with this number in the endless stream."""
        return self.documents(number)

    def documents(self, number):
        """Documents of the shard with this number in the endless stream: UTF-8, `(documents,)`."""
        epoch, index = number // len(self.shards), number % len(self.shards)
        if not self.keep_all:
            draw = tf.random.stateless_uniform(
                [len(self.shards)], self.seed_for(SHARD_ORDER, epoch)
            )
            index = tf.argsort(draw, stable=True)[tf.cast(index, tf.int32)]
        return read_shard(tf.constant(self.shards)[index])

    def order(self, sequences):
        """int32 tensor `(batches, batch)`: the sequences of each batch of a window."""
        size, window = self.batch_size, sequences["window"]
        count = tf.size(sequences["lengths"])
        draw = tf.random.stateless_uniform([count], self.seed_for(SEQUENCE_ORDER, window))
        order = tf.argsort(draw, stable=True)
        if self.keep_all:
            order = tf.pad(order, [[0, -count % size]], constant_values=count)
        order = order[: tf.size(order) // size * size]
        if self.similar_lengths:
            lengths = tf.gather(tf.concat([sequences["lengths"], [0]], 0), order)
            order = tf.gather(order, tf.argsort(lengths, stable=True))
        order = tf.reshape(order, [-1, size])
        draw = tf.random.stateless_uniform(tf.shape(order)[:1], self.seed_for(BATCH_ORDER, window))
        return tf.gather(order, tf.argsort(draw, stable=True))

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


def rounded_width(width):
    """Rounds the width of a batch up: to a multiple of 1 up to 32, 2 up to 64, 4 up to 128, then 8.

    So there are few different shapes, and rounding adds a fiftieth to the width on average.

    >>> [int(rounded_width(width)) for width in (31, 33, 65, 127, 129)]
    [31, 34, 68, 128, 136]
    """
    step = tf.bitwise.left_shift(1, sum(tf.cast(width > w, tf.int32) for w in (32, 64, 128)))
    return (width + step - 1) // step * step


def shards_for(corpus, sequences, wanted):
    """Returns how many shards have `wanted` sequences, if all of them have `sequences`.

    The result is `None` if the corpus would have to be read more than a thousand times for that.
    """
    passes = wanted / max(sequences, 1e-9)
    return None if passes > _MAX_PASSES else max(1, math.ceil(passes * len(corpus.shards)))
