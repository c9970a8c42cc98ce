"""bert4keras' `Tokenizer` with `jieba.cut(HMM=False)` in TensorFlow ops."""

import math
import types

import tensorflow as tf

from roformer_tf.portable import NO_INLINE
from roformer_tf.text.ragged_ops import (
    indices_to_mask,
    lengths_to_splits,
    ranges,
    repeat_indices,
    runs,
    true_indices,
    visited,
)
from roformer_tf.text.tokenizer_tables import CAPITAL_SIGMA, CONTROL, ISOLATED, LETTER

TEXTS = [tf.TensorSpec([None], tf.string)]
UNROLLED = 16  # positions of the longest run that one step of the loop handles


class GraphTokenizer(tf.Module):
    """Maps a batch of UTF-8 strings to token ids with core TensorFlow ops only.

    A `tf.Module` that holds its tables, so `tf.saved_model.save` can save it as part of another
    module, for processes with neither Keras nor TensorFlow Text. After `unicode_decode` all is
    integer arithmetic on one flat array of symbols: the texts follow one another, each ends with a
    newline, which belongs to no word.

    Time is linear in the length of the text, plus about 5 µs for each character of the longest run
    in the batch without punctuation or space.

    Args:
        tables: `TokenizerTables`.

    Call arguments:
        texts: string tensor `(batch,)`, UTF-8.

    Returns:
        RaggedTensor int32 `(batch, tokens)`, without special tokens.

    Example:

    >>> from roformer_tf.text import RoFormerTokenizer
    >>> vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "追", "一"]
    >>> graph = RoFormerTokenizer(vocabulary, word_level=False).graph
    >>> graph(tf.constant(["追一", "一二"]))
    <tf.RaggedTensor [[5, 6], [6, 1]]>
    """

    def __init__(self, tables, name=None):
        super().__init__(name)
        self._word_level = bool(tables.word_level)
        self._lowercase = bool(tables.lowercase)
        self._word_maxlen = int(tables.word_maxlen)
        self._roots = tables.roots.tolist()
        self._unk_entry = int(tables.unk_entry)
        self._unknown_score = float(tables.unknown_score)
        self._final_sigma = int(tables.final_sigma)
        self._n_symbols = len(tables.symbol_kind)
        self._n_entries = len(tables.entry_start)
        # Strings have no kernels on accelerators. By default TensorFlow may put the tables on a GPU
        # and copy them back for every batch, so the CPU is set here and in each method.
        with tf.device("CPU"), tf.init_scope():
            # not a dict, which TensorFlow would wrap to track its values
            self._tables = types.SimpleNamespace()
            for field in (
                *("char_page", "char_code", "case_page", "case_code"),
                *("expand_start", "expand_count", "expand_symbols"),
                *("symbol_kind", "symbol_block", "symbol_alnum"),
                *("entry_start", "entry_count", "entry_score"),
                *("entry_ids", "entry_begin", "entry_end"),
            ):
                setattr(self._tables, field, tf.constant(getattr(tables, field)))
            self._edges = tf.lookup.StaticHashTable(
                tf.lookup.KeyValueTensorInitializer(tables.edge_key, tables.edge_child), -1
            )

    @tf.function(input_signature=TEXTS, autograph=False, experimental_attributes=NO_INLINE)
    def __call__(self, texts):
        with tf.device("CPU"):
            symbols, splits = self._symbols(texts)
            entries, _, _ = self._entries(symbols)
            index, _, splits = self._parts(entries, splits)
            ids = tf.gather(self._tables.entry_ids, index)
            return tf.RaggedTensor.from_row_splits(ids, splits, validate=False)

    @tf.function(input_signature=TEXTS, autograph=False, experimental_attributes=NO_INLINE)
    def tokenize_with_offsets(self, texts):
        """Returns token ids, and where each token begins and ends in its text.

        Returns:
            Three RaggedTensors int32 `(batch, tokens)`: ids, starts and ends, in characters of the
            original string. An invalid byte counts as one character.
        """
        t = self._tables
        with tf.device("CPU"):
            symbols, splits, origin = self._symbols(texts, with_origin=True)
            entries, unk_size, _ = self._entries(symbols)
            index, position, splits = self._parts(entries, splits)
            begin = position + tf.gather(t.entry_begin, index)
            end = position + tf.gather(t.entry_end, index)
            # [UNK] stands for a whole run
            size = tf.gather(unk_size, position)
            end = tf.where(size > 0, position + size, end)
            flat = (
                tf.gather(t.entry_ids, index),
                tf.gather(origin, begin),
                tf.gather(origin, end - 1) + 1,
            )
            return tuple(tf.RaggedTensor.from_row_splits(x, splits, validate=False) for x in flat)

    def tokenize_with_word_starts(self, texts):
        """Returns token ids, which tokens begin a word, and where each token begins in its text.

        Not a `tf.function`, which would become part of every saved model.

        Returns:
            Three RaggedTensors `(batch, tokens)`: int32 ids; bool word starts; int32 starts, in
            characters of the original string. In a graph unused starts cost nothing.
        """
        with tf.device("CPU"):
            symbols, splits, origin = self._symbols(texts, with_origin=True)
            entries, _, letters = self._entries(symbols)
            index, position, splits = self._parts(entries, splits)
            # each entry is a word, except for later wordpieces of a run of letters
            later_piece = letters & tf.concat([[False], letters[:-1]], 0)
            begins = tf.equal(
                index, tf.gather(self._tables.entry_start, tf.gather(entries, position))
            )
            flat = (
                tf.gather(self._tables.entry_ids, index),
                begins & ~tf.gather(later_piece, position),
                tf.gather(origin, position + tf.gather(self._tables.entry_begin, index)),
            )
            return tuple(tf.RaggedTensor.from_row_splits(x, splits, validate=False) for x in flat)

    def _entries(self, symbols):
        """Finds words and wordpieces.

        Returns:
            For each symbol: the entry of the word or wordpiece that begins there, or 0; the length
            of the run that begins there if all of it is [UNK], or 0; whether it is a letter in a
            run.
        """
        if self._word_level:
            entries, letters = self._jieba(symbols)
        else:
            kind = tf.gather(self._tables.symbol_kind, symbols)
            letters = tf.equal(kind, LETTER)
            entries = tf.where(tf.equal(kind, ISOLATED), symbols, 0)
        return *self._word_piece(symbols, letters, entries), letters

    def _parts(self, entries, splits):
        """Returns each token's index in `entry_ids`, its entry's position, and row splits."""
        count = tf.gather(self._tables.entry_count, entries)
        splits = tf.cast(tf.gather(lengths_to_splits(count), splits), tf.int64)
        position = true_indices(count > 0)
        entries, count = tf.gather(entries, position), tf.gather(count, position)
        index = ranges(tf.gather(self._tables.entry_start, entries), count)
        return index, tf.gather(position, repeat_indices(count)), splits

    # -- characters

    def _symbols(self, texts, with_origin=False):
        """Returns normalized symbols, row splits, and optionally each symbol's position."""
        t = self._tables
        rows = tf.strings.unicode_decode(texts + "\n", "UTF-8")
        codes, splits = rows.flat_values, tf.cast(rows.row_splits, tf.int32)
        # arrays that are expanded and filtered together with the symbols
        extra = [_positions_in_rows(splits)] if with_origin else []

        def look_up(page, table):
            return tf.gather(table, tf.gather(page, codes // 256) * 256 + codes % 256)

        symbols = look_up(t.char_page, t.char_code)

        def final_sigma():
            """Replaces a capital sigma that follows a cased character and precedes none.

            Case-ignorable characters in between do not count.
            """
            case = tf.cast(look_up(t.case_page, t.case_code), tf.int32)
            sigma = true_indices(tf.equal(codes, ord(CAPITAL_SIGMA)))
            solid = true_indices(tf.not_equal(case, 2))  # the last one is a newline
            case = tf.concat([tf.gather(case, solid), [0]], 0)
            i = tf.searchsorted(solid, sigma)
            before = i - 1 + tf.where(tf.equal(i, 0), tf.size(case), 0)
            final = tf.boolean_mask(
                sigma,
                tf.equal(tf.gather(case, before), 1) & tf.not_equal(tf.gather(case, i + 1), 1),
            )
            return tf.tensor_scatter_nd_update(
                symbols, final[:, None], tf.fill([tf.size(final)], self._final_sigma)
            )

        def expanded():
            many = tf.maximum(-symbols, 0)
            count = tf.where(symbols < 0, tf.gather(t.expand_count, many), 1)
            row = repeat_indices(count)
            own = tf.gather(symbols, row)
            position = tf.where(own < 0, ranges(tf.gather(t.expand_start, many), count), 0)
            return (
                tf.where(own < 0, tf.gather(t.expand_symbols, position), own),
                tf.gather(lengths_to_splits(count), splits),
                *(tf.gather(x, row) for x in extra),
            )

        if self._lowercase:
            has_sigma = tf.reduce_any(tf.equal(codes, ord(CAPITAL_SIGMA)))
            symbols = tf.cond(has_sigma, final_sigma, lambda: symbols)
            symbols, splits, *extra = tf.cond(
                tf.reduce_any(symbols < 0), expanded, lambda: (symbols, splits, *extra)
            )
        if not self._word_level:  # drop control characters, which joins their neighbours
            keep = tf.not_equal(tf.gather(t.symbol_kind, symbols), CONTROL)
            splits = tf.gather(lengths_to_splits(tf.cast(keep, tf.int32)), splits)
            symbols, *extra = (tf.boolean_mask(x, keep) for x in (symbols, *extra))
        return symbols, splits, *extra

    # -- words

    def _matches(self, symbols, starts, roots):
        """Finds all entries that begin at `starts`, short ones first.

        Returns:
            For each match: its index into `starts`, its length, its entry.
        """

        def body(depth, start, node, m_start, m_len, m_entry):
            symbol = tf.gather(symbols, tf.gather(starts, start) + depth)
            node = self._edges.lookup(node * self._n_symbols + tf.cast(symbol, tf.int64))
            alive = true_indices(node >= 0)
            start, node = tf.gather(start, alive), tf.gather(node, alive)
            hit = true_indices(node < self._n_entries)
            depth += 1
            return (
                depth,
                start,
                node,
                tf.concat([m_start, tf.gather(start, hit)], 0),
                tf.concat([m_len, tf.fill([tf.size(hit)], depth)], 0),
                tf.concat([m_entry, tf.cast(tf.gather(node, hit), tf.int32)], 0),
            )

        # Not tf.zeros([0]): Grappler (TensorFlow 2.21) mistakes the static shape of a loop
        # variable's initial value for that of its final value, and folds its tf.size to 0
        none = true_indices(starts < 0)
        return tf.while_loop(
            lambda depth, start, *_: tf.size(start) > 0,
            body,
            [0, tf.range(tf.size(starts)), roots, none, none, none],
            shape_invariants=[tf.TensorShape([])] + [tf.TensorShape([None])] * 5,
        )[3:]

    def _jieba(self, symbols):
        """Segments as `jieba.cut(HMM=False)`.

        Returns:
            For each symbol: the entry of the word that begins there, or 0; whether it is a single
            letter or digit. Runs of these go through WordPiece.
        """
        t = self._tables
        position, first, run, left = runs(tf.gather(t.symbol_block, symbols))
        num_positions = tf.size(position)
        root = tf.fill([num_positions], tf.constant(self._roots[0], tf.int64))
        start, size, entry = self._matches(symbols, position, root)
        score = tf.gather(t.entry_score, entry)
        best = best_word_lengths(first, run, left, start, size, score, self._unknown_score)
        begins = visited(best, left, first)
        taken = tf.gather(begins, start) & tf.equal(size, tf.gather(best, start)) & (size > 1)
        word = tf.math.unsorted_segment_max(
            tf.boolean_mask(entry, taken), tf.boolean_mask(start, taken), num_positions
        )
        symbol = tf.gather(symbols, position)
        single = begins & tf.equal(best, 1)
        letter = single & tf.gather(t.symbol_alnum, symbol)
        word = tf.where(single, tf.where(letter, 0, symbol), tf.maximum(word, 0))
        return (
            tf.tensor_scatter_nd_update(symbols, position[:, None], word),
            indices_to_mask(tf.size(symbols), tf.boolean_mask(position, letter)),
        )

    def _word_piece(self, symbols, letters, entries):
        """Splits the runs of `letters` by WordPiece: greedy, longest match first.

        Returns:
            `entries` with those of the wordpieces; and, for each symbol, the length of the run that
            begins there if all of it is [UNK], or 0.
        """
        position, first, run, left = runs(letters)
        num_positions = tf.size(position)
        start, size, entry = self._matches(
            tf.where(letters, symbols, 0),
            position,
            tf.where(first, *(tf.constant(root, tf.int64) for root in self._roots[1:])),
        )
        last = tf.math.unsorted_segment_max(tf.range(tf.size(start)), start, num_positions)
        last = tf.where(last < 0, tf.size(start), last)
        longest = tf.gather(tf.concat([size, [0]], 0), last)
        piece = tf.gather(tf.concat([entry, [0]], 0), last)
        begins = visited(longest, left, first)
        # A run with a position where no wordpiece matches, or with too many letters, is [UNK]. A
        # run in the vocabulary never is, since the original looks up what it could not split
        bad = begins & tf.equal(longest, 0)
        bad |= first & (left > self._word_maxlen) & (longest < left)
        n_runs = tf.reduce_sum(tf.cast(first, tf.int32))
        bad = tf.gather(indices_to_mask(n_runs, tf.boolean_mask(run, bad)), run)
        piece = tf.where(bad, tf.where(first, self._unk_entry, 0), tf.where(begins, piece, 0))
        unk_size = tf.where(bad & first, left, 0)
        return (
            tf.tensor_scatter_nd_update(entries, position[:, None], piece),
            tf.scatter_nd(position[:, None], unk_size, [tf.size(symbols)]),
        )


def _positions_in_rows(splits):
    """Returns 0, 1, 2, … for each row. No row may be empty."""
    begins, size = splits[:-1], splits[-1]
    # at the start of each row: the length of the row before
    steps = tf.concat([[0], begins[1:] - begins[:-1]], 0)[: tf.size(begins)]
    return tf.range(size) - tf.cumsum(tf.scatter_nd(begins[:, None], steps, [size]))


def best_word_lengths(first, run, left, start, size, score, unknown_score):
    """Returns the length of jieba's best word at each position of the runs.

    jieba goes from the end of each run to its start, and at each position takes the maximum of
    (score of the word + score of the rest, end of the word). This does the same in float64 and in
    jieba's order of additions, so even ties come out the same: the longer word wins. Step t of the
    loop handles the t-th last position of all runs longer than t. With the runs sorted by length
    these are the first ones.

    Args:
        first, run, left: For each position, as `ragged_ops.runs` returns them.
        start, size, score: For each word found: the position where it begins, its length, and its
            float64 score.
        unknown_score: float. Score of a character that is not a word.

    Returns:
        int32 lengths, one for each position.

    Source: `jieba.Tokenizer.calc` of jieba 0.42.1.
    """
    num_positions = tf.size(run)
    # where no word of the dictionary begins
    alone = true_indices(~indices_to_mask(num_positions, start))
    start = tf.concat([start, alone], 0)
    size = tf.concat([size, tf.ones_like(alone)], 0)
    unknown = tf.fill([tf.size(alone)], tf.constant(unknown_score, tf.float64))
    score = tf.concat([score, unknown], 0)
    widest = tf.maximum(tf.reduce_max(size), 1)

    lengths = tf.boolean_mask(left, first)
    n_runs = tf.size(lengths)
    by_length = tf.argsort(-lengths, stable=True)
    rank = tf.scatter_nd(by_length[:, None], tf.range(n_runs), [n_runs])
    splits = lengths_to_splits(tf.math.bincount(left - 1))
    order = tf.gather(splits, left - 1) + tf.gather(rank, run)

    # (position, widest): column widest - s is for words of s characters; missing ones score lowest
    cell = tf.gather(order, start) * widest + widest - size
    scores = tf.math.unsorted_segment_max(score, cell, num_positions * widest)
    scores = tf.reshape(scores, [num_positions, widest])
    sizes = tf.range(widest, 0, -1)[None]

    def longest_words(total):
        top = tf.reduce_max(total, 1, keepdims=True)
        return top, tf.reduce_max(tf.where(tf.equal(total, top), sizes, 0), 1)

    def body(t, route, best):
        begin, end = splits[t], splits[t + 1]
        route = route[: end - begin]
        top, longest = longest_words(scores[begin:end] + route)
        return t + 1, tf.concat([route[:, 1:], top], 1), best.write(t, longest)

    # as long as there are several runs
    steps = tf.size(splits) - 1
    shared = tf.reduce_sum(tf.cast(splits[1:] - splits[:-1] > 1, tf.int32))
    none = tf.fill([n_runs, widest - 1], tf.constant(-math.inf, tf.float64))
    route = tf.concat([none, tf.zeros([n_runs, 1], tf.float64)], 1)
    _, route, best = tf.while_loop(
        lambda t, *_: t < shared,
        body,
        [
            0,
            route,
            tf.TensorArray(tf.int32, shared, infer_shape=False, element_shape=[None]),
        ],
        shape_invariants=[tf.TensorShape([]), tf.TensorShape([None, None]), None],
    )
    best = tf.cond(shared > 0, best.concat, lambda: tf.zeros([0], tf.int32))

    # the rest of the longest run: several positions in each step, which has a cost of its own
    count = steps - shared
    blocks = -(-count // UNROLLED)
    rest = tf.pad(scores[tf.size(best) :], [[0, blocks * UNROLLED - count], [0, 0]])
    rest = tf.reshape(rest, [blocks, UNROLLED, widest])

    def unrolled(block, route, best):
        totals = []
        for row in tf.unstack(rest[block], UNROLLED):
            totals.append(row + route)
            route = tf.concat([route[1:], tf.reduce_max(totals[-1], keepdims=True)], 0)
        return block + 1, route, best.write(block, longest_words(tf.stack(totals))[1])

    _, _, last = tf.while_loop(
        lambda block, *_: block < blocks,
        unrolled,
        [
            0,
            tf.reshape(route[:1], [-1]),
            tf.TensorArray(tf.int32, blocks, element_shape=[UNROLLED]),
        ],
        shape_invariants=[tf.TensorShape([]), tf.TensorShape([None]), None],
    )
    best = tf.concat([best, tf.reshape(last.stack(), [-1])[:count]], 0)
    return tf.gather(best, order)


@tf.function(autograph=False, reduce_retracing=True)
def tokenize_with_word_starts(graph, segmenter, texts):
    """Returns token ids, and which of them begin a word.

    A word of the segmenter begins at the first token after its start, unless that token is a later
    wordpiece: jieba treats each character of another script as a word, but the wordpieces of a run
    stay together.

    Args:
        graph: `GraphTokenizer`.
        segmenter: None, or the word-level `GraphTokenizer` whose words count.
        texts: string tensor `(batch,)`.

    Returns:
        Two RaggedTensors `(batch, tokens)`: int32 ids, bool word starts.
    """
    ids, begins, starts = graph.tokenize_with_word_starts(texts)
    if segmenter is None:
        return ids, begins
    with tf.device("CPU"):
        _, theirs, positions = segmenter.tokenize_with_word_starts(texts)
        width = tf.reduce_max(tf.concat([starts.flat_values, positions.flat_values, [0]], 0)) + 1
        words = tf.boolean_mask(_unique_positions(positions, width), theirs.flat_values)
        # the number of words begun so far grows at each token that begins one
        begun = tf.searchsorted(words, _unique_positions(starts, width), side="right")
        grows = tf.concat([[True], tf.not_equal(begun[1:], begun[:-1])], 0)[: tf.size(begun)]
        # each text begins a word, even if the segmenter drops its first token
        row_starts = tf.boolean_mask(starts.row_starts(), starts.row_lengths() > 0)
        grows = tf.tensor_scatter_nd_update(
            grows, row_starts[:, None], tf.fill([tf.size(row_starts)], True)
        )
        return ids, begins.with_flat_values(begins.flat_values & grows)


def _unique_positions(positions, width):
    """Maps positions in rows to int64 numbers that increase over all rows."""
    row = repeat_indices(positions.row_lengths())
    return row * tf.cast(width, tf.int64) + tf.cast(positions.flat_values, tf.int64)
