"""The original tokenizer of RoFormer as a Keras layer."""

import os
from functools import partial

import keras
import keras_hub
import tensorflow as tf
from keras_hub.src.utils.tensor_utils import preprocessing_function

from roformer_tf.checkpoint.vocabulary import Vocabulary, check_has_tokens, has_words
from roformer_tf.files import replace_file
from roformer_tf.text.familiar_names import TokenizerFromPreset
from roformer_tf.text.graph_detokenizer import GraphDetokenizer, detokenize_pairs
from roformer_tf.text.graph_tokenizer import GraphTokenizer, tokenize_with_word_starts
from roformer_tf.text.marked_tokens import MarkedTokens, checked_new_tokens
from roformer_tf.text.pair_packer import encode_texts, to_ragged_ids
from roformer_tf.text.segmentation_dictionary import list_user_words
from roformer_tf.text.strings import checked_texts, map_strings, to_string_tensor
from roformer_tf.text.tokenizer_tables import (
    TokenizerTables,
    build_tables,
    load_or_build_tables,
)

VOCABULARY_FILE = "vocabulary.txt"
TABLES_FILE = "tokenizer_tables.npz"
SPECIAL_TOKENS = ("pad_token", "unk_token", "start_token", "end_token", "mask_token")
ARGUMENTS = (
    *("word_level", "lowercase", "user_words", "dictionary", *SPECIAL_TOKENS, "word_maxlen"),
    *("sequence_length", "special_tokens_in_strings", "added_tokens"),
)


@keras.saving.register_keras_serializable(package="roformer_tf")
class RoFormerTokenizer(TokenizerFromPreset, keras_hub.tokenizers.Tokenizer):
    r"""The original tokenizer of RoFormer: the same token ids as bert4keras on every input.

    At word level, as the released word models were trained, it removes case and accents, then
    segments with jieba's dictionary (`HMM=False`). A word in the vocabulary is one token, any other
    word goes through BERT's basic tokenizer and WordPiece. Character level does the same without
    jieba.

    Core TensorFlow ops only: the layer runs eagerly under every Keras backend, in `tf.data` and in
    a `tf.function`, and a `tf.Module` with `tokenizer.graph` can be saved and served.

    Building the tables of jieba's dictionary takes about four seconds. They are saved as assets of
    the layer, and kept in a cache folder (set `ROFORMER_TF_CACHE` to choose it).

    Args:
        vocabulary: Path of a vocabulary file, list of tokens, or dict of token -> id, as
            `load_vocabulary` returns it. None leaves it to `set_vocabulary` or `load_assets`.
        word_level: bool. False for character level.
        lowercase: bool. False keeps case and accents.
        user_words: list of words, or mapping from words to frequencies. They are added to the
            dictionary as by `jieba.add_word`. A frequency of 0 deletes the word. Words are not
            normalized: with `lowercase=True` pass them in lower case.
        dictionary: Path of a dictionary in jieba's format, plain, `.gz` or `.xz`. None uses
            jieba's own.
        pad_token, unk_token, start_token, end_token, mask_token: str. Tokens of the vocabulary.
            All but `unk_token` may be None if the vocabulary lacks them.
        word_maxlen: int. A longer word that is not in the vocabulary is [UNK].
        sequence_length: int or None. Truncates and pads each sequence to this length.
        special_tokens_in_strings: bool. Whether "[MASK]" and the other special tokens in a text
            are these tokens, and not text.
        added_tokens: list of str, or None. Tokens of the vocabulary that are found in a text as
            they are written, before it is tokenized. See `add_tokens`.
        dtype: `"int32"`.
        **kwargs: Arguments of the Keras layer.

    Call arguments:
        inputs: str, bytes, or a (nested) list, NumPy array or string tensor of them.

    Returns:
        int32 token ids without special tokens. As in KerasHub: in a `tf.function` or `tf.data` a
        RaggedTensor `(batch, tokens)`; eagerly a list of lists; for a single string a tensor
        `(tokens,)`; with `sequence_length` a dense tensor.

    Unusual input:

    * An invalid byte is one U+FFFD, as in `bytes.decode(errors="replace")`. U+FFFD, NUL and
      control characters are dropped: "a\0b" is one word at character level, two at word level.
    * A lone surrogate in a Python string is an unknown letter.
    * An empty or blank string has no tokens. An empty batch gives an empty batch.
    * Special tokens in a text, such as "[MASK]", are treated as text, unless
      `special_tokens_in_strings`. Any length is allowed.

    Raises:
        FileNotFoundError: If the vocabulary or dictionary file does not exist.
        ValueError: If the vocabulary is empty, not UTF-8, lacks a special token or has white space
            in a token; if the dictionary is broken; if called without a vocabulary.
        TypeError: If the input is not a string.

    Example:

    >>> vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "追", "一", "ro", "##former"]
    >>> tokenizer = RoFormerTokenizer(vocabulary, word_level=False)
    >>> tokenizer(["追一RoFormer", "三"])
    [[5, 6, 7, 8], [1]]
    >>> tokenizer.detokenize([2, 5, 6, 7, 8, 3])
    '追一roformer'

    Word level, with another dictionary and a user word:

    >>> import os, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "dict.txt")
    >>> with open(path, "w", encoding="utf-8") as file:
    ...     _ = file.write("追一 10")
    >>> vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "追一", "科技", "追", "科"]
    >>> RoFormerTokenizer(vocabulary, dictionary=path, user_words=["科技"])(["追一科技"])
    [[5, 6]]

    Source: `Tokenizer` of bert4keras 0.11.5 with `pre_tokenize=lambda s: jieba.cut(s, HMM=False)`,
    as in `train.py` of the original repository.
    """

    def __init__(
        self,
        vocabulary=None,
        word_level=True,
        lowercase=True,
        user_words=None,
        dictionary=None,
        pad_token="[PAD]",
        unk_token="[UNK]",
        start_token="[CLS]",
        end_token="[SEP]",
        mask_token="[MASK]",
        word_maxlen=200,
        sequence_length=None,
        special_tokens_in_strings=False,
        added_tokens=None,
        dtype="int32",
        **kwargs,
    ):
        super().__init__(dtype=dtype, **kwargs)
        if self.compute_dtype != "int32":
            raise ValueError(f"Token ids are int32; `dtype` must be 'int32'. Received: {dtype!r}")
        self.word_level = word_level
        self.lowercase = lowercase
        if hasattr(user_words, "items"):  # such as a pandas Series, which no config can hold
            user_words = dict(list_user_words(user_words))
        self.user_words = user_words
        self.dictionary = None if dictionary is None else os.fspath(dictionary)
        self.word_maxlen = word_maxlen
        self.sequence_length = sequence_length
        self.special_tokens_in_strings = special_tokens_in_strings
        self.added_tokens = list(added_tokens or [])
        self._vocabulary = self._tables = None
        special = (pad_token, unk_token, start_token, end_token, mask_token)
        for name, token in zip(SPECIAL_TOKENS, special, strict=True):
            if token is None:
                if name == "unk_token":
                    raise ValueError("`unk_token` must be a token of the vocabulary, not None.")
                setattr(self, name, None)
                setattr(self, f"{name}_id", None)
            else:
                self._add_special_token(token, name)
        self.set_vocabulary(vocabulary)
        self.file_assets = [VOCABULARY_FILE, TABLES_FILE]

    def get_config(self):
        config = {**super().get_config(), "vocabulary": None}  # an asset
        return config | {name: getattr(self, name) for name in ARGUMENTS}

    @classmethod
    def from_config(cls, config):
        if isinstance(config.get("vocabulary"), str):
            # as in KerasHub: a configuration from an archive must not read files
            raise ValueError(
                "The configuration of a tokenizer must not contain a path. "
                f"Received: vocabulary={config['vocabulary']!r}. Remove it and call "
                "`set_vocabulary(path)` on the new tokenizer."
            )
        return cls(**config)

    # Not decorated, because KerasHub would make an array of a list of strings, in which each string
    # takes the space of the longest one
    def call(self, inputs, *args, training=None, **kwargs):
        return self.tokenize(inputs, *args, **kwargs)

    def tokenize(self, inputs):
        """Converts strings to token ids. See the class."""
        return self._run(to_string_tensor(inputs), function=self._tokenize)

    @preprocessing_function
    def _run(self, tensors, function):
        """Calls a function of tensors. Its outputs become lists, except in a graph."""
        return function(tensors)

    def _tokenize(self, texts):
        ids = map_strings(self.graph, texts)
        if self.sequence_length:
            shape = [None] * (texts.shape.rank or 1) + [self.sequence_length]
            if texts.shape.rank == 0:
                ids = tf.RaggedTensor.from_row_lengths(ids, [tf.size(ids)])
            ids = ids.to_tensor(self.pad_token_id or 0, shape=shape)
            ids = ids[0] if texts.shape.rank == 0 else ids
        return ids

    def tokenize_with_offsets(self, inputs):
        """Returns token ids, and the span of the text that each token covers.

        Args:
            inputs: Strings, as in a call of the layer.

        Returns:
            `(ids, starts, ends)`, each like the result of `tokenize` without `sequence_length`.
            `text[start:end]` in the original string became the token, except for dropped
            characters at its end, such as accents.

        Example:

        >>> vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "café", "cafe", "!"]
        >>> tokenizer = RoFormerTokenizer(vocabulary, word_level=False)
        >>> ids, starts, ends = tokenizer.tokenize_with_offsets(["  Café!"])
        >>> ids, starts, ends
        ([[6, 7]], [[2, 6]], [[6, 7]])

        Source: `Tokenizer.rematch` of bert4keras 0.11.5, which counts in the lower-cased text,
        longer by one for each "İ" (U+0130).
        """
        tokenize = self.graph.tokenize_with_offsets
        return self._run(to_string_tensor(inputs), function=partial(map_strings, tokenize))

    def tokenize_with_word_starts(self, inputs, segmenter=None):
        """Returns token ids, and which tokens begin a word, for whole-word masking.

        At word level the words are jieba's, whether or not they are in the vocabulary. At character
        level they are the tokens of BERT's basic tokenizer: a Chinese character, a punctuation
        mark, or all wordpieces of a run of letters. With a `segmenter`, all tokens in one of its
        words belong together.

        Args:
            inputs: Strings, as in a call of the layer.
            segmenter: None, or a word-level `RoFormerTokenizer` that provides the words for a
                character-level one, as in Chinese-BERT-wwm. Its vocabulary does not matter.

        Returns:
            `(ids, word_starts)`, each like the result of `tokenize` without `sequence_length`.

        Raises:
            ValueError: If `segmenter` is not of word level, or this tokenizer is.

        Example:

        >>> vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "天", "气", "ro", "##former"]
        >>> tokenizer = RoFormerTokenizer(vocabulary, word_level=False)
        >>> tokenizer.tokenize_with_word_starts(["天气RoFormer"])
        ([[5, 6, 7, 8]], [[True, True, True, False]])
        >>> segmenter = RoFormerTokenizer(vocabulary)
        >>> tokenizer.tokenize_with_word_starts(["天气RoFormer"], segmenter)
        ([[5, 6, 7, 8]], [[True, False, True, False]])
        """
        if segmenter is not None and (self.word_level or not segmenter.word_level):
            raise ValueError(
                "`segmenter` must be a word-level tokenizer, passed to a character-level one. "
                f"Received: word_level={segmenter.word_level} for word_level={self.word_level}"
            )
        segmenter = None if segmenter is None else segmenter.graph
        tokenize = partial(tokenize_with_word_starts, self.graph, segmenter)
        return self._run(to_string_tensor(inputs), function=partial(map_strings, tokenize))

    def detokenize(self, inputs, separator="\n"):
        r"""Converts token ids to readable text.

        Args:
            inputs: Integer ids `(tokens,)` or `(batch, tokens)`, as a list, array, dense or ragged
                tensor.
            separator: str. Stands between the texts of a pair, which `end_token` separates. `""`
                joins them, as bert4keras does.

        Returns:
            The text, or a list of texts; in a `tf.function` a string tensor. Special tokens are
            skipped, padding included.

        Raises:
            tf.errors.InvalidArgumentError: If an id is not in the vocabulary.

        Example:

        >>> vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "天", "气", "好"]
        >>> tokenizer = RoFormerTokenizer(vocabulary, word_level=False)
        >>> tokenizer.detokenize(tokenizer.encode("天气", "好")[0], separator=" | ")
        '天气 | 好'

        Source: `Tokenizer.decode` of bert4keras 0.11.5.
        """
        detokenize = self.graph_detokenizer
        if separator and self.end_token_id is not None:
            detokenize = partial(detokenize_pairs, detokenize, self.end_token_id, separator)
        if keras.ops.is_tensor(inputs) and not tf.is_tensor(inputs):
            inputs = keras.ops.convert_to_numpy(inputs)
        ids, unbatched = to_ragged_ids(inputs)
        one = (lambda ids: detokenize(ids)[0]) if unbatched else detokenize
        return self._run(ids, function=one)

    def encode(
        self,
        first,
        second=None,
        max_length=None,
        truncate_from="right",
        pattern="S*E*E",
        return_offsets=False,
        maxlen=None,
    ):
        """Encodes `[CLS] first [SEP]` or `[CLS] first [SEP] second [SEP]`, truncated as bert4keras.

        Without `max_length` nothing is truncated. With it, the longer text loses a token, the first
        of two equally long ones, until no more than `max_length` are left: a short text is kept
        whole beside a long one. For the padded inputs of a model see `PairPacker`.

        Args:
            first: str or batch of strings.
            second: None, or the same as `first`.
            max_length: int or None. Maximum number of tokens, special ones included.
            truncate_from: `"right"`, `"left"`, or an int: the index in each text with its special
                tokens at which tokens are dropped.
            pattern: `"S*E*E"`, or `"S*ES*E"`, which gives the second text a start token, too.
            return_offsets: bool. Whether to return also the span of each token in its own text, as
                `tokenize_with_offsets` does. Special tokens have the span (0, 0).
            maxlen: bert4keras' name of `max_length`.

        Returns:
            `(token_ids, segment_ids)`, with `return_offsets` `(token_ids, segment_ids, starts,
            ends)`, each like the result of `tokenize`.

        Raises:
            ValueError: If `max_length`, `truncate_from` or `pattern` is not one of these.
            tf.errors.InvalidArgumentError: If a text has no token at the index `truncate_from`.

        Example:

        >>> vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c"]
        >>> tokenizer = RoFormerTokenizer(vocabulary, word_level=False)
        >>> tokenizer.encode(["a b c", "c"], ["b", "a b"], max_length=6)
        ([[2, 5, 6, 3, 6, 3], [2, 7, 3, 5, 6, 3]], [[0, 0, 0, 0, 1, 1], [0, 0, 0, 1, 1, 1]])
        >>> _, _, starts, ends = tokenizer.encode(["a b"], ["c"], return_offsets=True)
        >>> starts, ends
        ([[0, 0, 2, 0, 0, 0]], [[0, 1, 3, 0, 1, 0]])

        Source: `TokenizerBase.encode` of bert4keras 0.11.5.
        """
        options = max_length, maxlen, truncate_from, pattern, return_offsets
        encode = partial(encode_texts, self, *options)
        return self._run(checked_texts(first, second), function=encode)

    # -- the vocabulary and its files

    def set_vocabulary(self, vocabulary):
        """Sets the vocabulary, as the class takes it. Keeps the dictionary of a loaded layer."""
        if vocabulary is None:
            self._vocabulary = self._tables = self._graph = self._graph_detokenizer = None
            return
        vocabulary = self._checked_vocabulary(vocabulary)
        dictionary = self._tables and self._tables.dictionary()
        options = self.lowercase, self.unk_token, self.word_maxlen
        if self.word_level and dictionary is None:
            tables = load_or_build_tables(vocabulary, self.dictionary, self.user_words, *options)
        else:
            tables = build_tables(vocabulary, dictionary, *options)
        self._set(vocabulary, tables)

    def add_tokens(self, tokens: list[str]) -> int:
        """Adds tokens that are found in a text as they are written, such as names or `"<number>"`.

        They are looked for before the text is tokenized, at both levels, and the longest one wins.
        A model needs a vector for each: `roformer_tf.models.add_tokens(model, tokens)` does both.
        They are part of a saved model or preset, and not of an original folder.

        Args:
            tokens: list of str without white space. Those of the vocabulary keep their ids.

        Returns:
            int. How many of them are new in the vocabulary.

        Raises:
            ValueError: If a token is empty, not a string, or has white space; or if the vocabulary
                repeats tokens at its end, so that new ones would get the ids of others.

        Example:

        >>> vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "天", "气"]
        >>> tokenizer = RoFormerTokenizer(vocabulary, word_level=False)
        >>> tokenizer.add_tokens(["天气", "<city>"])
        2
        >>> tokenizer(["<city>天气天"])
        [[8, 7, 5]]
        """
        vocabulary, tokens = self._known_vocabulary(), checked_new_tokens(tokens)
        new = [token for token in tokens if token not in vocabulary.ids]
        grown = vocabulary.grown(new)
        self.added_tokens += [token for token in tokens if token not in self.added_tokens]
        self.set_vocabulary(grown)
        return len(new)

    def _checked_vocabulary(self, source):
        vocabulary = Vocabulary(source)
        check_has_tokens(vocabulary, {*self.special_tokens, *self.added_tokens})
        return vocabulary

    def _set(self, vocabulary, tables):
        self._vocabulary, self._tables = vocabulary, tables
        graph, marked = GraphTokenizer(tables), self.marked_tokens()
        self._graph = MarkedTokens(graph, marked) if marked else graph
        added = set(self.added_tokens) - set(self.special_tokens)
        self._graph_detokenizer = GraphDetokenizer(vocabulary, added)
        self._update_special_token_ids()

    def marked_tokens(self) -> dict[str, int]:
        """Returns the ids of the tokens that are found in a text as they are written."""
        marked = set(self.added_tokens)
        if self.special_tokens_in_strings:
            marked.update(self.special_tokens)
        return {token: self._vocabulary.ids[token] for token in sorted(marked)}

    def settings_beside_vocabulary(self) -> dict:
        """Returns the arguments that a tokenizer made from the vocabulary alone would not have.

        A folder in the original layout holds the vocabulary alone. It decides between word and
        character level, and all else is the default.
        """
        plain = RoFormerTokenizer(word_level=has_words(self._known_vocabulary().ids))
        values = {name: getattr(self, name) for name in ARGUMENTS}
        return {name: x for name, x in values.items() if x != getattr(plain, name)}

    def segmentation_dictionary(self):
        """Returns the `SegmentationDictionary` with the user words; at character level `None`."""
        return self._tables.dictionary()

    def save_assets(self, dir_path):
        """Writes the vocabulary, and the tables with their dictionary, to a folder."""
        text = "".join(f"{token}\n" for token in self.get_vocabulary())
        with replace_file(os.path.join(dir_path, VOCABULARY_FILE)) as file:
            file.write(text.encode())
        self._tables.save(os.path.join(dir_path, TABLES_FILE))

    def load_assets(self, dir_path):
        """Reads what `save_assets` wrote. Builds the tables if they are missing."""
        path = os.path.join(dir_path, VOCABULARY_FILE)
        tables_path = os.path.join(dir_path, TABLES_FILE)
        if not os.path.exists(tables_path):
            self.set_vocabulary(path)
            return
        vocabulary = self._checked_vocabulary(path)
        tables = TokenizerTables.load(tables_path)
        names = ("word_level", "lowercase", "word_maxlen")
        wrong = [name for name in names if getattr(tables, name) != getattr(self, name)]
        if tables.vocabulary_digest != vocabulary.digest():
            wrong.insert(0, "vocabulary_digest")
        if wrong:
            raise ValueError(
                f"{tables_path!r} is for another vocabulary or configuration "
                f"({', '.join(wrong)} differ). Delete it: the tables are rebuilt with jieba's "
                "dictionary, or with the argument `dictionary`."
            )
        self._set(vocabulary, tables)

    def get_vocabulary(self) -> list[str]:
        """Returns the tokens in the order of the vocabulary file."""
        return list(self._known_vocabulary().tokens)

    def vocabulary_size(self) -> int:
        """Returns one more than the highest id."""
        return self._known_vocabulary().size

    def id_to_token(self, id: int) -> str:
        """Returns the token of an id."""
        token = self._known_vocabulary().token(int(id))
        if token is None:
            size = self._vocabulary.size
            raise ValueError(f"`id` must be the id of a token, in [0, {size}). Received: {id}")
        return token

    def token_to_id(self, token: str) -> int:
        """Returns the id of a token."""
        if token not in self._known_vocabulary().ids:
            raise ValueError(f"Token {token!r} is not in the vocabulary.")
        return self._vocabulary.ids[token]

    @property
    def graph(self) -> GraphTokenizer | MarkedTokens:
        """The `GraphTokenizer`, a `tf.Module` to hold in what `tf.saved_model.save` saves."""
        self._known_vocabulary()
        return self._graph

    @property
    def graph_detokenizer(self) -> GraphDetokenizer:
        """The `GraphDetokenizer`, a `tf.Module`."""
        self._known_vocabulary()
        return self._graph_detokenizer

    def _known_vocabulary(self):
        if self._vocabulary is None:
            raise ValueError(
                "The tokenizer has no vocabulary yet. Pass `vocabulary` when creating it, or call "
                "`set_vocabulary(path)`."
            )
        return self._vocabulary
