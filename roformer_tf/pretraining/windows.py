"""Windows of a corpus: groups of shards, made into sequences and batches in a graph."""

import tensorflow as tf

from roformer_tf.pretraining.objective import PretrainingObjective
from roformer_tf.pretraining.packing import form_sequences, positions_in_documents, take_sequences
from roformer_tf.pretraining.shard_windows import (
    CHUNK_ORDER,
    TARGETS,
    ShardWindows,
    plain,
    rounded_width,
    shards_for,
)
from roformer_tf.text import RoFormerTokenizer, text_segmentate
from roformer_tf.text.graph_tokenizer import tokenize_with_word_starts
from roformer_tf.text.ragged_ops import lengths_to_splits

# A large shard is tokenized in parts of about so many bytes: the tokenizer takes some hundred times
# the space of its input.
_PART_BYTES = 2**20


class Windows(ShardWindows):
    """Forms the windows of a corpus of raw text for one stage; see `ShardWindows`.

    The chunks of a window are shuffled and formed into sequences, and the sequences into batches.

    Args:
        shards: list of str. Paths.
        tokenizer: a `RoFormerTokenizer`.
        stage: a `Stage`.
        data: `DataSettings`.
        seed: tuple of two ints.
        num_shards: int. Shards per window.
        keep_all: bool. See `ShardWindows`.
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

    def form(self, chunks, window):
        """Makes sequences of the chunks of a window; see `form_sequences`."""
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
        """Tokenized chunks of the shard with this number in the endless stream."""
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
            segmenter = None if self.segmenter is None else self.segmenter.graph
            ids, starts = tokenize_with_word_starts(self.tokenizer.graph, segmenter, texts)
            tokens["word_starts"] = starts.values
        else:
            ids = self.tokenizer.graph(texts)
        lengths = tf.cast(ids.row_lengths(), tf.int32)
        return {**tokens, "token_ids": ids.values, "lengths": lengths}

    def take(self, sequences, index):
        """Takes the sequences of these numbers, as wide as the longest of them."""
        lengths = tf.gather(tf.concat([sequences["lengths"], [0]], 0), index)
        width = tf.minimum(rounded_width(tf.reduce_max(lengths)), self.max_length)
        return take_sequences(sequences, index, width)

    @plain
    def with_targets(self, batch):
        """Adds the model's inputs and labels; `count` is the number of batches of the window."""
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
    count = shards_for(corpus, sequences, data.window_batches * stage.global_batch_size)
    if count is None:
        raise ValueError(
            f"The corpus of {corpus.num_characters} characters makes about {sequences:.2g} "
            f"sequences of {stage.max_length} tokens, far too few for {data.window_batches} "
            f"batches of {stage.global_batch_size}. Add more text, or lower `global_batch_size` or "
            "`window_batches`."
        )
    return count
