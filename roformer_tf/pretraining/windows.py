"""Windows of a corpus: groups of chunk files, tokenized and formed into rows and batches, all in graph."""

import math

import tensorflow as tf

from roformer_tf.pretraining.corpus import read_chunk
from roformer_tf.pretraining.objective import PretrainingObjective
from roformer_tf.pretraining.packing import form_rows, places_in_documents, take_rows
from roformer_tf.text import RoFormerTokenizer, text_segmentate
from roformer_tf.text.ragged_ops import splits_of
from roformer_tf.text.word_starts import tokenize_with_words

# What a seed is for; each use draws from a stream of its own.
_CHUNK_ORDER, _PIECE_ORDER, _ROW_ORDER, _BATCH_ORDER, _TARGETS = range(5)
# A large chunk is tokenized in parts of about so many bytes, since the tokenizer takes some hundred times the space.
_PART_BYTES = 2**20
# A corpus that must be read so many times for one window is too small to train on.
_MAX_PASSES = 1000


# There is nothing for AutoGraph to convert, which takes seconds.
_plain = tf.autograph.experimental.do_not_convert


class Windows:
    """The windows of a corpus for one stage: which chunk files, which rows, which batches.

    Window w is the w-th group of `num_chunks` consecutive files of an endless sequence: all chunk files in a random
    order, then all in another, and so on. Its pieces are shuffled and formed into rows, and the rows into batches, by
    the stateless seed (seed, stage, window). So a batch depends on nothing but its place.

    Args:
        chunks: list of paths.
        tokenizer: a `RoFormerTokenizer`.
        stage: a `Stage`.
        data: `DataSettings`.
        seed: tuple of two integers.
        num_chunks: integer, chunk files in a window.
        every_row: whether the rows left over fill a last batch, with empty rows behind them, and are not dropped; the
            chunk files then come in their own order.
    """

    def __init__(self, chunks, tokenizer, stage, data, seed, num_chunks, every_row=False):
        self.chunks = list(chunks)
        self.tokenizer = tokenizer
        self.stage = stage
        self.data = data
        self.num_chunks = num_chunks
        self.every_row = every_row
        self.seed = seed
        self.piece_characters = max(1, round(data.piece_characters * stage.max_length))
        self.segmenter = None
        if data.whole_word and data.objective == "masked_lm" and not tokenizer.word_level:
            # Chinese whole words are jieba's, whose characters are tokens of their own here
            self.segmenter = RoFormerTokenizer(
                tokenizer.get_vocabulary(), lowercase=tokenizer.lowercase
            )
        self.objective = PretrainingObjective(
            tokenizer,
            data.objective,
            mask_rate=data.mask_rate,
            mask_token_rate=data.mask_token_rate,
            random_token_rate=data.random_token_rate,
            whole_word=data.whole_word,
            mask_special_tokens=data.mask_special_tokens,
        )

    def _seed(self, use, *numbers):
        seed = tf.constant(self.seed, tf.int64)
        for number in (use, *numbers):
            seed = tf.random.experimental.stateless_fold_in(seed, tf.cast(number, tf.int64))
        return seed

    @_plain
    def rows(self, window, num_parallel_calls):
        """Dataset of a single element: the rows of a window, as `form_rows` gives them."""
        first = window * self.num_chunks
        last = first + self.num_chunks
        if self.every_row:
            last = tf.minimum(last, len(self.chunks))
        chunks = tf.data.Dataset.range(first, last).map(
            self.pieces, num_parallel_calls=num_parallel_calls, deterministic=True
        )
        window_pieces = chunks.ragged_batch(self.num_chunks)
        return window_pieces.map(
            lambda pieces: {
                "window": window,
                **form_rows(
                    {name: values.flat_values for name, values in pieces.items()},
                    self._seed(_PIECE_ORDER, window),
                    self.stage.max_length,
                    self.data.packing,
                    self.tokenizer.start_token_id,
                    self.tokenizer.end_token_id,
                    self.objective.num_end_tokens,
                ),
            }
        )

    def pieces(self, position):
        """The tokenized pieces of the chunk file at a position of the endless sequence."""
        epoch, index = position // len(self.chunks), position % len(self.chunks)
        if not self.every_row:
            draw = tf.random.stateless_uniform([len(self.chunks)], self._seed(_CHUNK_ORDER, epoch))
            index = tf.argsort(draw, stable=True)[tf.cast(index, tf.int32)]
        documents = read_chunk(tf.constant(self.chunks)[index])
        texts = text_segmentate(documents, self.piece_characters, self.data.separators).flat_values
        part = tf.cumsum(tf.strings.length(texts)) // _PART_BYTES
        splits = splits_of(tf.math.bincount(part, minlength=1))
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
        # one part at a time, or they would all be in memory
        _, arrays = tf.while_loop(
            lambda i, _: i < num_parts, body, [0, arrays], parallel_iterations=1
        )
        return {name: tf.ensure_shape(array.concat(), [None]) for name, array in arrays.items()}

    def _tokenize(self, texts):
        tokens = {}
        if self.objective.whole_word:
            segmenter = None if self.segmenter is None else self.segmenter.graph
            ids, starts = tokenize_with_words(self.tokenizer.graph, segmenter, texts)
            tokens["word_starts"] = starts.values
        else:
            ids = self.tokenizer.graph(texts)
        lengths = tf.cast(ids.row_lengths(), tf.int32)
        return {**tokens, "token_ids": ids.values, "lengths": lengths}

    def order(self, rows):
        """int32 tensor `(batches, rows)`: the rows of each batch of a window."""
        size = self.stage.global_batch_size
        num_rows = tf.size(rows["lengths"])
        draw = tf.random.stateless_uniform([num_rows], self._seed(_ROW_ORDER, rows["window"]))
        order = tf.argsort(draw, stable=True)
        if self.every_row:
            order = tf.pad(order, [[0, -num_rows % size]], constant_values=num_rows)
        order = order[: tf.size(order) // size * size]
        if self.data.packing == "none":  # rows of like length together
            lengths = tf.gather(tf.concat([rows["lengths"], [0]], 0), order)
            order = tf.gather(order, tf.argsort(lengths, stable=True))
        order = tf.reshape(order, [-1, size])
        draw = tf.random.stateless_uniform(
            tf.shape(order)[:1], self._seed(_BATCH_ORDER, rows["window"])
        )
        return tf.gather(order, tf.argsort(draw, stable=True))

    @_plain
    def batches(self, rows, first=0):
        """Dataset of the batches of a window, from batch number `first` on, without their targets."""
        order = self.order(rows)
        count = tf.shape(order, tf.int64)[0]
        enough = tf.debugging.Assert(
            count > 0,
            [
                f"A window of {self.num_chunks} chunk files does not fill a batch of {self.stage.global_batch_size} "
                f"rows of {self.stage.max_length} tokens. Lower `global_batch_size`, raise `window_batches`, or "
                "give more text. Rows in the window:",
                tf.size(rows["lengths"]),
            ],
        )
        with tf.control_dependencies([enough]):
            count = tf.identity(count)

        def batch(index):
            own = order[index]
            lengths = tf.gather(tf.concat([rows["lengths"], [0]], 0), own)
            width = tf.minimum(rounded_width(tf.reduce_max(lengths)), self.stage.max_length)
            place = {"window": rows["window"], "index": index, "count": count}
            return {**take_rows(rows, own, width), **place}

        return tf.data.Dataset.range(tf.cast(first, tf.int64), count).map(batch)

    @_plain
    def with_targets(self, batch):
        """A batch of `batches` as the model takes it; `count` is the number of batches of its window."""
        documents = None if self.data.packing == "none" else batch["document_ids"]
        made = self.objective(
            batch["token_ids"],
            batch["lengths"],
            self._seed(_TARGETS, batch["window"], batch["index"]),
            documents,
            batch.get("word_starts"),
        )
        if self.data.packing == "block_diagonal":
            made["document_ids"] = documents
            made["position_ids"] = places_in_documents(documents)
        shape = tf.shape(batch["lengths"])
        place = {name: tf.fill(shape, batch[name]) for name in ("window", "index", "count")}
        rows = self.stage.global_batch_size
        return {
            name: tf.ensure_shape(value, [rows, *value.shape[1:]])
            for name, value in {**made, **place}.items()
        }


def rounded_width(width):
    """The next width that rows are padded to: a multiple of 1 up to 32 tokens, 2 up to 64, 4 up to 128, then 8.

    So batches have few different shapes, and rounding adds a fiftieth to their width on average.

    >>> [int(rounded_width(width)) for width in (31, 33, 65, 127, 129)]
    [31, 34, 68, 128, 136]
    """
    step = tf.bitwise.left_shift(1, sum(tf.cast(width > w, tf.int32) for w in (32, 64, 128)))
    return (width + step - 1) // step * step


def chunks_in_window(corpus, stage, data):
    """How many chunk files make a window of about `window_batches` global batches.

    A row is taken to hold `piece_characters` characters for each of its tokens. Without packing short documents make
    more rows than that, and so more batches. Where the corpus is smaller than a window, the window goes through it
    several times.

    Raises:
        ValueError: if the corpus would have to be read more than a thousand times for a window.
    """
    wanted = data.window_batches * stage.global_batch_size
    rows = corpus.num_characters / (data.piece_characters * stage.max_length)
    passes = wanted / max(rows, 1e-9)
    if passes > _MAX_PASSES:
        raise ValueError(
            f"The corpus of {corpus.num_characters} characters makes about {rows:.2g} rows of {stage.max_length} "
            f"tokens, far too few for {data.window_batches} batches of {stage.global_batch_size}: give more text, "
            "or lower `global_batch_size` or `window_batches`."
        )
    return max(1, math.ceil(passes * len(corpus.chunks)))
