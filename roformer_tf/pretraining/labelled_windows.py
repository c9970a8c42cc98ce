"""Windows of the examples of labelled tasks; see `windows`."""

import tensorflow as tf

from roformer_tf.models import RoFormerQuestionAnsweringPreprocessor
from roformer_tf.models.batches import plain
from roformer_tf.models.roformer_token_classifier_preprocessor import token_spans
from roformer_tf.pretraining.labelled_files import split_examples, split_readings
from roformer_tf.pretraining.packing import positions_in_documents, rounded_width
from roformer_tf.pretraining.windows import (
    BATCH_ORDER,
    SEQUENCE_ORDER,
    TARGETS,
    ShardWindows,
    shards_for,
)
from roformer_tf.text.random_masker import is_none_of, mask_tokens

# What becomes of a token that is hidden from a labelled task: 20 % are spared by the first draw of
# the original, of which nine in ten become a random token.
_MASK_TOKEN_RATE, _RANDOM_TOKEN_RATE = 0.8, 0.18
_MASKS = ("segment_ids", "padding_mask", "answer_mask")


class LabelledWindows(ShardWindows):
    """Base class of the windows of a labelled task for a `Stage`; see `ShardWindows`.

    Each sequence predicts one label, in the form in which a masked LM predicts tokens, so all tasks
    have batches of the same form. Tasks draw differently by their numbers, which start at 1.
    """

    size_setting = "batch_size"

    def __init__(
        self, shards, preprocessor, task, number, stage, data, seed, num_shards, keep_all=False
    ):
        super().__init__(
            shards,
            seed,
            num_shards,
            task.batch_size or stage.global_batch_size,
            min(preprocessor.sequence_length, stage.max_length),
            similar_lengths=True,
            keep_all=keep_all,
        )
        self.preprocessor = preprocessor
        self.task = task
        self.number = number
        self.packing = data.packing

    def seed_for(self, use, *numbers):
        return super().seed_for(use, self.number, *numbers)

    def with_labels(self, inputs, labels, real, batch):
        """Makes a batch of inputs and labels; `real` is False for what fills a held-out batch."""
        inputs = dict(inputs)
        inputs["padding_mask"] *= tf.cast(real, tf.int32)[:, tf.newaxis]
        if self.packing == "block_diagonal":  # as the batches of the masked LM have these
            document = inputs["padding_mask"]
            inputs["document_ids"] = document
            inputs["position_ids"] = positions_in_documents(document)
        made = {
            **inputs,
            "mask_positions": tf.zeros_like(labels)[:, tf.newaxis],
            "labels": labels[:, tf.newaxis],
            "label_weights": tf.cast(real, tf.float32)[:, tf.newaxis],
        }
        return self.with_position(made, batch)

    def hide_tokens(self, token_ids, batch, pieces=None):
        """Hides `mask_rate` of the tokens, in pairs of neighbours, as the original does.

        The tokens of a pair are of the same number in `pieces`, int32 `(batch, length)`. Those of
        number -1 are not hidden.
        """
        tokenizer = self.preprocessor.tokenizer
        seed = self.seed_for(TARGETS, batch["window"], batch["index"])
        seeds = tf.random.experimental.stateless_split(seed, 2)
        draw = tf.random.stateless_uniform(tf.shape(token_ids), seeds[0])
        first = draw < self.task.mask_rate / 2
        second = tf.pad(first[:, :-1], [[0, 0], [1, 0]])
        chosen = first | second
        if pieces is not None:
            before = tf.pad(pieces[:, :-1], [[0, 0], [1, 0]], constant_values=-1)
            chosen = (first | (second & (pieces == before))) & (pieces >= 0)
        chosen &= is_none_of(token_ids, tokenizer.special_token_ids)
        return mask_tokens(
            token_ids,
            chosen,
            seeds[1],
            tokenizer.vocabulary_size(),
            tokenizer.mask_token_id,
            _MASK_TOKEN_RATE,
            _RANDOM_TOKEN_RATE,
            first_random_id=1,
        )


class ExampleWindows(LabelledWindows):
    """Forms the windows of the classification of texts, or of pairs; see `LabelledWindows`.

    An example of an `ExampleReader` becomes the sequence that the task's preprocessor makes of it.
    """

    def form(self, examples, window):
        examples = examples.flat_values  # their lengths are in bytes
        return {"examples": examples, "lengths": tf.strings.length(examples)}

    def take(self, sequences, index):
        return {"examples": tf.gather(tf.concat([sequences["examples"], [""]], 0), index)}

    @plain
    def with_targets(self, batch):
        num_texts = 1 if self.task.text_pair is None else 2
        labels, *texts = split_examples(batch["examples"], num_texts)
        tokenizer = self.preprocessor.tokenizer
        ids = tuple(tokenizer.graph(text) for text in texts)
        shorter = self.max_length - self.preprocessor.sequence_length
        inputs = self.preprocessor.pack_ids(ids, extra=shorter)
        width = tf.shape(inputs["token_ids"])[1]
        more = tf.minimum(rounded_width(width), self.max_length) - width
        inputs = {name: tf.pad(value, [[0, 0], [0, more]]) for name, value in inputs.items()}
        if self.task.mask_rate:
            inputs["token_ids"] = self.hide_tokens(inputs["token_ids"], batch)
        return self.with_labels(inputs, labels, batch["examples"] != "", batch)


def example_shards_in_window(corpus, name, task, stage, data):
    """Computes how many shards of a task make a window of about `window_batches` batches.

    Raises:
        ValueError: If a window would have to read the examples more than a thousand times.
    """
    size, examples = task.batch_size or stage.global_batch_size, corpus.num_documents
    found = f"The task {name} has {examples} examples"
    remedy = "Add more, or lower its `batch_size` or `data.window_batches`."
    count = shards_for(corpus, examples, data.window_batches, size, found, remedy)
    # the last shard may be tiny, and follow itself at the start of the next epoch
    return count if len(corpus.shards) == 1 else max(count, 3)


class ReadingWindows(LabelledWindows):
    """Forms the windows of a reading task; see `LabelledWindows`.

    A context becomes sliding chunks, each a sequence of its own. A chunk with several answers
    becomes as many sequences. A sequence predicts which span of its tokens is the answer, that of
    `[CLS]` alone for none: its label is `start * width + end`, the number of the span among all
    pairs of a start and an end. At most half of a batch has no answer. A random choice of those
    that are too many is dropped from each window, but none of the held-out ones.

    Reference: `data_generator` of `multi-task/t0705_webqa.py`, `mrc_stride_split` of
    `multi-task/snippets.py` of the original's v2.
    """

    more_needs = " At most half of a batch may have no answer."

    def __init__(self, shards, preprocessor, task, *args, **kwargs):
        super().__init__(shards, preprocessor, task, *args, **kwargs)
        self.preprocessor = SlidingPreprocessor(
            preprocessor.tokenizer,
            sequence_length=self.max_length,
            max_question_length=preprocessor.max_question_length,
            pair_segments=preprocessor.pair_segments,
            padding="max_length",
        )
        self.preprocessor.chunk_step = task.chunk_step

    def form(self, chunks, window):
        return {name: values.values for name, values in chunks.items()}

    def chunks(self, number):
        """Makes the sequences of a shard: the chunks of its contexts, each with an answer."""
        answers, question, context = split_readings(self.documents(number))
        inputs, details = self.preprocessor.pack_chunks(question, context)
        answers = tf.pad(answers, [[0, 0], [0, 0], [0, 1]])
        spans = token_spans(answers, details, exact=False)[..., :2]  # (chunks, answers, 2)
        found = spans[..., 0] >= 0
        none = ~tf.reduce_any(found, axis=1, keepdims=True)
        chosen = tf.where(tf.concat([found, none], axis=1))  # (sequences, 2): chunk and answer
        spans = tf.gather_nd(tf.pad(tf.maximum(spans, 0), [[0, 0], [0, 1], [0, 0]]), chosen)
        inputs = {name: tf.gather(value, chosen[:, 0]) for name, value in inputs.items()}
        lengths = tf.reduce_sum(inputs["padding_mask"], axis=1)
        # a window may have tens of thousands
        inputs |= {name: tf.cast(inputs[name], tf.int8) for name in _MASKS}
        inputs = {
            name: tf.ensure_shape(value, [None, self.max_length]) for name, value in inputs.items()
        }
        return {**inputs, "spans": tf.ensure_shape(spans, [None, 2]), "lengths": lengths}

    def order(self, sequences):
        if self.keep_all:
            return super().order(sequences)
        size, window = self.batch_size, sequences["window"]
        lengths = sequences["lengths"]
        order = self.random_order(tf.size(lengths), SEQUENCE_ORDER, window)
        answered = tf.gather(sequences["spans"][:, 0] > 0, order)
        with_answer, without = order[answered], order[~answered]
        # as many batches as can be filled if at most `size // 2` of each have no answer
        most = size // 2
        count = tf.minimum(tf.size(order) // size, tf.size(with_answer) // (size - most))
        num_without = tf.minimum(tf.size(without), count * most)

        def by_length(chosen):
            return tf.gather(chosen, tf.argsort(tf.gather(lengths, chosen), stable=True))

        without = by_length(without[:num_without])
        with_answer = by_length(with_answer[: count * size - num_without])
        # those without an answer are spread evenly: each batch gets its share of the next longer
        shares = tf.cast(tf.range(count + 1), tf.int64) * tf.cast(num_without, tf.int64)
        shares = tf.cast(shares // tf.maximum(tf.cast(count, tf.int64), 1), tf.int32)
        here = shares[1:] - shares[:-1]
        first = tf.range(count) * size - shares[:-1]
        slot = tf.range(size)[tf.newaxis]
        here, first, shares = (x[:, tf.newaxis] for x in (here, first, shares[:-1]))
        rows = tf.concat([with_answer, without], 0)
        index = tf.where(slot < here, tf.size(with_answer) + shares + slot, first + slot - here)
        order = tf.gather(rows, index)
        return tf.gather(order, self.random_order(count, BATCH_ORDER, window))

    def take(self, sequences, index):
        count = tf.size(sequences["lengths"])
        real = tf.cast(index < count, tf.int32)  # others fill the last held-out batch
        row = tf.minimum(index, count - 1)
        width = rounded_width(tf.reduce_max(tf.gather(sequences["lengths"], row)))
        width = tf.minimum(width, self.max_length)
        taken = {
            name: tf.cast(tf.gather(sequences[name], row)[:, :width], tf.int32)
            for name in ("token_ids", *_MASKS)
        }
        spans = tf.gather(sequences["spans"], row) * real[:, tf.newaxis]
        return {**taken, "spans": spans, "real": real}

    @plain
    def with_targets(self, batch):
        inputs = {name: batch[name] for name in ("token_ids", *_MASKS)}
        width = tf.shape(inputs["token_ids"])[1]
        start, end = tf.unstack(batch["spans"], axis=1)
        if self.task.mask_rate:
            pieces = self._pieces(inputs, start, end)
            inputs["token_ids"] = self.hide_tokens(inputs["token_ids"], batch, pieces)
        return self.with_labels(inputs, start * width + end, batch["real"] > 0, batch)

    def _pieces(self, inputs, start, end):
        """Numbers the parts whose tokens are hidden separately, -1 for tokens to leave alone.

        As in the original these are the question, the answer, and what is before and after it. A
        part is left alone if its share of hidden tokens is less than a pair. So short answers can
        be read.
        """
        ids, tokenizer = inputs["token_ids"], self.preprocessor.tokenizer
        position = tf.range(tf.shape(ids)[1])[tf.newaxis]
        in_context = (inputs["answer_mask"] > 0) & (position > 0)
        after = tf.cast(position >= start[:, tf.newaxis], tf.int32)
        after += tf.cast(position > end[:, tf.newaxis], tf.int32)
        pieces = tf.where(in_context, 1 + after, 0)
        is_text = (inputs["padding_mask"] > 0) & (ids != tokenizer.start_token_id)
        is_text &= ids != tokenizer.end_token_id
        members = tf.one_hot(tf.where(is_text, pieces, -1), 4)
        sizes = tf.reduce_sum(members, axis=1)  # (batch, 4)
        large = tf.gather(sizes * self.task.mask_rate >= 2.0, pieces, batch_dims=1)
        return tf.where(is_text & large, pieces, -1)


class SlidingPreprocessor(RoFormerQuestionAnsweringPreprocessor):
    """Makes chunks that begin a fixed number of tokens apart, as the original does for training.

    Where chunks are so short that this leaves gaps, neighboring ones share half of their tokens.
    """

    chunk_step = 128

    def shared_tokens(self, room):
        return tf.maximum(room - self.chunk_step, room // 2)
