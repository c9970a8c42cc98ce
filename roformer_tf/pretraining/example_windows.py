import tensorflow as tf

from roformer_tf.pretraining.example_files import split_examples
from roformer_tf.pretraining.shard_windows import (
    TARGETS,
    ShardWindows,
    plain,
    rounded_width,
    shards_for,
)
from roformer_tf.text.random_masker import is_none_of, mask_tokens

# What becomes of a token that is hidden from a labelled task: 20 % are spared by the first draw of
# the original, of which nine in ten become a random token.
_MASK_TOKEN_RATE, _RANDOM_TOKEN_RATE = 0.8, 0.18


class LabelledWindows(ShardWindows):
    """Base class of the windows of a labelled task for one stage; see `ShardWindows`.

    Each sequence predicts one label, in the form in which a masked LM predicts tokens, so all tasks
    have batches of the same form.

    Args:
        shards: list of str. Paths of shards with the examples that the task's reader yields.
        preprocessor: the preprocessor of the task's model.
        task: `TaskSettings` or `ReadingTaskSettings`.
        number: int. Number of the task, from 1; each task draws differently.
        stage: a `Stage`.
        data: `DataSettings`.
        seed: tuple of two ints.
        num_shards: int. Shards per window.
        keep_all: bool. See `ShardWindows`.
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
        """Makes a batch of inputs and labels.

        Args:
            inputs: dict of the inputs of the task's model.
            labels: int32 tensor `(batch,)`.
            real: bool tensor `(batch,)`. False for what fills the last held-out batch.
            batch: dict with the position of the batch.
        """
        inputs = dict(inputs)
        inputs["padding_mask"] *= tf.cast(real, tf.int32)[:, tf.newaxis]
        if self.packing == "block_diagonal":  # as the batches of the masked LM have these
            document = inputs["padding_mask"]
            inputs["document_ids"] = document
            inputs["position_ids"] = document * tf.cumsum(document, axis=1, exclusive=True)
        made = {
            **inputs,
            "mask_positions": tf.zeros_like(labels)[:, tf.newaxis],
            "labels": labels[:, tf.newaxis],
            "label_weights": tf.cast(real, tf.float32)[:, tf.newaxis],
        }
        return self.with_position(made, batch)

    def hide_tokens(self, token_ids, batch, pieces=None):
        """Hides `mask_rate` of the tokens, in pairs of neighbours, as the original does.

        Args:
            token_ids: int32 tensor `(batch, length)`.
            batch: dict with the position of the batch, which decides what is hidden.
            pieces: int32 tensor `(batch, length)`. The tokens of a pair are of the same piece. Those
                of piece -1 are not hidden.
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
        """Returns the examples of a window, with their lengths in bytes."""
        examples = examples.flat_values
        return {"examples": examples, "lengths": tf.strings.length(examples)}

    def take(self, sequences, index):
        return {"examples": tf.gather(tf.concat([sequences["examples"], [""]], 0), index)}

    @plain
    def with_targets(self, batch):
        """Tokenizes the examples of a batch; `count` is the number of batches of the window."""
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
    batch_size = task.batch_size or stage.global_batch_size
    count = shards_for(corpus, corpus.num_documents, data.window_batches * batch_size)
    if count is None:
        raise ValueError(
            f"The task {name} has {corpus.num_documents} examples, far too few for "
            f"{data.window_batches} batches of {batch_size}. Add more, or lower its `batch_size` "
            "or `data.window_batches`."
        )
    # the last shard may be tiny, and follow itself at the start of the next epoch
    return count if len(corpus.shards) == 1 else max(count, 3)
