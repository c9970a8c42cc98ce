"""The original tokenizer of RoFormer as a Keras layer."""

import os

import keras
import keras_hub
import tensorflow as tf
from keras_hub.src.utils.tensor_utils import preprocessing_function

from roformer_tf.checkpoint.folder import checked_folder, is_kerashub_source
from roformer_tf.checkpoint.saving import SavedWhole
from roformer_tf.checkpoint.vocabulary import Vocabulary
from roformer_tf.checks import check_one_of
from roformer_tf.files import replace_file
from roformer_tf.naming import automatic_name
from roformer_tf.text.graph_detokenizer import GraphDetokenizer
from roformer_tf.text.graph_tokenizer import GraphTokenizer, tokenize_with_word_starts
from roformer_tf.text.pair_packer import join_segments, to_ragged_ids, truncation_index
from roformer_tf.text.strings import map_strings, to_string_tensor
from roformer_tf.text.tokenizer_tables import TokenizerTables, load_or_build_tables

VOCABULARY_FILE = "vocabulary.txt"
TABLES_FILE = "tokenizer_tables.npz"
SPECIAL_TOKENS = ("pad_token", "unk_token", "start_token", "end_token", "mask_token")


@keras.saving.register_keras_serializable(package="roformer_tf")
class RoFormerTokenizer(SavedWhole, keras_hub.tokenizers.Tokenizer):
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
        dictionary: Path of a dictionary in jieba's format. None uses jieba's own.
        pad_token, unk_token, start_token, end_token, mask_token: str. Tokens of the vocabulary.
            All but `unk_token` may be None if the vocabulary lacks them.
        word_maxlen: int. A longer word that is not in the vocabulary is [UNK].
        sequence_length: int or None. Truncates and pads each sequence to this length.
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
    * Special tokens in a text, such as "[MASK]", are treated as text. Any length is allowed.

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
        dtype="int32",
        **kwargs,
    ):
        kwargs["name"] = kwargs.get("name") or automatic_name(type(self))
        super().__init__(dtype=dtype, **kwargs)
        if self.compute_dtype != "int32":
            raise ValueError(f"Token ids are int32; `dtype` must be 'int32'. Received: {dtype!r}")
        self.word_level = word_level
        self.lowercase = lowercase
        self.user_words = user_words
        self.dictionary = None if dictionary is None else os.fspath(dictionary)
        self.word_maxlen = word_maxlen
        self.sequence_length = sequence_length
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

    @classmethod
    def from_preset(cls, preset, **kwargs):
        """Builds the tokenizer from the folder of a model.

        Args:
            preset: str or path. An original or Hugging Face folder with a `vocab.txt`, or one
                written by `save_to_preset`; a `.zip` file of one; or `"hf://user/name"`.
            **kwargs: Arguments of the class. In a checkpoint `word_level` defaults to whether the
                vocabulary has Chinese words.

        Returns:
            RoFormerTokenizer.

        Raises:
            FileNotFoundError: If there is no such folder, or it has no vocabulary.
            ValueError: If the folder holds another kind of tokenizer. The message names its class.
        """
        if is_kerashub_source(preset):  # KerasHub downloads it
            return super().from_preset(str(preset), **kwargs)
        with checked_folder(preset, weights=False) as folder:
            folder.check_tokenizer_class("RoFormerTokenizer")
            if folder.layout == "preset":
                return super().from_preset(str(folder.path), **kwargs)
            return cls(**folder.tokenizer_arguments(**kwargs))

    def get_config(self):
        return {
            **super().get_config(),
            "vocabulary": None,  # an asset
            "word_level": self.word_level,
            "lowercase": self.lowercase,
            "user_words": self.user_words,
            "dictionary": self.dictionary,
            **{name: getattr(self, name) for name in SPECIAL_TOKENS},
            "word_maxlen": self.word_maxlen,
            "sequence_length": self.sequence_length,
        }

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

    # Not decorated: KerasHub would convert a list of strings by way of an array, where each takes
    # the space of the longest one
    def call(self, inputs, *args, training=None, **kwargs):
        return self.tokenize(inputs, *args, **kwargs)

    def tokenize(self, inputs):
        """Converts strings to token ids. See the class."""
        self._check_vocabulary()
        return self._tokenize(to_string_tensor(inputs))

    @preprocessing_function
    def _tokenize(self, texts):
        ids = map_strings(self._graph, texts)
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
        self._check_vocabulary()
        return self._tokenize_with_offsets(to_string_tensor(inputs))

    @preprocessing_function
    def _tokenize_with_offsets(self, texts):
        return map_strings(self._graph.tokenize_with_offsets, texts)

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
        self._check_vocabulary()
        if segmenter is not None and (self.word_level or not segmenter.word_level):
            raise ValueError(
                "`segmenter` must be a word-level tokenizer, passed to a character-level one. "
                f"Received: word_level={segmenter.word_level} for word_level={self.word_level}"
            )
        return self._tokenize_with_words(to_string_tensor(inputs), segmenter=segmenter)

    @preprocessing_function
    def _tokenize_with_words(self, texts, segmenter):
        segmenter = None if segmenter is None else segmenter.graph
        return map_strings(
            lambda rows: tokenize_with_word_starts(self._graph, segmenter, rows), texts
        )

    def detokenize(self, inputs):
        """Converts token ids to readable text.

        Args:
            inputs: Integer ids `(tokens,)` or `(batch, tokens)`, as a list, array, dense or ragged
                tensor.

        Returns:
            The text, or a list of texts; in a `tf.function` a string tensor. Special tokens are
            skipped, padding included.

        Raises:
            tf.errors.InvalidArgumentError: If an id is not in the vocabulary.

        Source: `Tokenizer.decode` of bert4keras 0.11.5.
        """
        self._check_vocabulary()
        if keras.ops.is_tensor(inputs) and not tf.is_tensor(inputs):
            inputs = keras.ops.convert_to_numpy(inputs)
        ids, unbatched = to_ragged_ids(inputs)
        return self._detokenize(ids, unbatched=unbatched)

    @preprocessing_function
    def _detokenize(self, ids, unbatched):
        texts = self._graph_detokenizer(ids)
        return texts[0] if unbatched else texts

    def encode(self, first, second=None, maxlen=None, truncate_from="right", pattern="S*E*E"):
        """Encodes `[CLS] first [SEP]` or `[CLS] first [SEP] second [SEP]`, truncated as bert4keras.

        While there are more than `maxlen` tokens, one is dropped from the longest text, from the
        first of two equally long ones. For the padded inputs of a model see `PairPacker`.

        Args:
            first: str or batch of strings.
            second: None, or the same as `first`.
            maxlen: int or None. Maximum number of tokens, special ones included.
            truncate_from: `"right"`, `"left"`, or an int: the index in each text with its special
                tokens at which tokens are dropped.
            pattern: `"S*E*E"`, or `"S*ES*E"`, which gives the second text a start token, too.

        Returns:
            `(token_ids, segment_ids)`, each like the result of `tokenize`.

        Raises:
            ValueError: If `maxlen`, `truncate_from` or `pattern` is not one of these.
            tf.errors.InvalidArgumentError: If a text has no token at the index `truncate_from`.

        Example:

        >>> vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c"]
        >>> tokenizer = RoFormerTokenizer(vocabulary, word_level=False)
        >>> tokenizer.encode(["a b c", "c"], ["b", "a b"], maxlen=6)
        ([[2, 5, 6, 3, 6, 3], [2, 7, 3, 5, 6, 3]], [[0, 0, 0, 0, 1, 1], [0, 0, 0, 1, 1, 1]])

        Source: `TokenizerBase.encode` of bert4keras 0.11.5.
        """
        self._check_vocabulary()
        check_one_of("pattern", pattern, ("S*E*E", "S*ES*E"))
        lowest = 0 if self.end_token is None else 1
        if maxlen is not None and (not isinstance(maxlen, int) or maxlen < lowest):
            raise ValueError(
                f"`maxlen` must be None or an integer of at least {lowest}. Received: {maxlen!r}"
            )
        texts = (first,) if second is None else (first, second)
        texts = tuple(map(to_string_tensor, texts))
        ranks = {text.shape.rank for text in texts}
        if not ranks <= {0, 1} or len(ranks) > 1:
            raise ValueError(
                "`first` and `second` must both be strings, or both batches of strings. Received: "
                f"shapes {[tuple(text.shape) for text in texts]}"
            )
        index = truncation_index(
            truncate_from, self.start_token is not None, self.end_token is not None
        )
        return self._encode(texts, maxlen=maxlen, index=index, repeat_start=pattern == "S*ES*E")

    @preprocessing_function
    def _encode(self, texts, maxlen, index, repeat_start):
        with tf.device("CPU"):
            unbatched = texts[0].shape.rank == 0
            token_ids, segment_ids, lengths = join_segments(
                [self._graph(tf.reshape(text, [-1])) for text in texts],
                self.start_token_id,
                self.end_token_id,
                maxlen,
                index,
                repeat_start,
            )
            if unbatched:
                return token_ids[0], segment_ids[0]
            return tuple(tf.RaggedTensor.from_tensor(x, lengths) for x in (token_ids, segment_ids))

    # -- vocabulary and files

    def set_vocabulary(self, vocabulary):
        """Sets the vocabulary: a path, list of tokens, dict of token -> id, or None.

        Keeps the dictionary of a loaded layer.
        """
        if vocabulary is None:
            self._vocabulary = self._tables = self._graph = self._graph_detokenizer = None
            return
        vocabulary = self._checked(Vocabulary(vocabulary))
        dictionary = self._tables and self._tables.dictionary()
        tables = load_or_build_tables(
            vocabulary,
            self.word_level,
            dictionary or self.dictionary,
            self.user_words,
            self.lowercase,
            self.unk_token,
            self.word_maxlen,
        )
        self._set(vocabulary, tables)

    def _checked(self, vocabulary):
        missing = {getattr(self, name) for name in self._special_token_attrs} - set(vocabulary.ids)
        if missing:
            tip = "Check that the file is the checkpoint's `vocab.txt`"
            if vocabulary.tokens[0].startswith("\ufeff"):
                tip = "Its first line begins with a byte order mark: save it as UTF-8 without one"
            raise ValueError(
                f"The vocabulary lacks the special tokens {sorted(missing)}; it has {vocabulary.size} "
                f"tokens that begin with {vocabulary.tokens[:3]}. {tip}; or pass its own special "
                "tokens, e.g. `mask_token=None` if it has none."
            )
        return vocabulary

    def _set(self, vocabulary, tables):
        self._vocabulary, self._tables = vocabulary, tables
        self._graph = GraphTokenizer(tables)
        self._graph_detokenizer = GraphDetokenizer(vocabulary)
        self._update_special_token_ids()

    def segmentation_dictionary(self):
        """Returns the `SegmentationDictionary` with the user words; at character level `None`."""
        return self._tables.dictionary()

    def save_assets(self, dir_path):
        """Writes the vocabulary, and the tables with their dictionary, to a folder."""
        self._check_vocabulary()
        with replace_file(os.path.join(dir_path, VOCABULARY_FILE)) as file:
            file.write("".join(f"{token}\n" for token in self._vocabulary.tokens).encode())
        self._tables.save(os.path.join(dir_path, TABLES_FILE))

    def load_assets(self, dir_path):
        """Reads what `save_assets` wrote. Builds the tables if they are missing."""
        path = os.path.join(dir_path, VOCABULARY_FILE)
        tables_path = os.path.join(dir_path, TABLES_FILE)
        if not os.path.exists(tables_path):
            self.set_vocabulary(path)
            return
        vocabulary = self._checked(Vocabulary(path))
        tables = TokenizerTables.load(tables_path)
        expected = {
            "vocabulary_digest": vocabulary.digest(),
            "word_level": self.word_level,
            "lowercase": self.lowercase,
            "word_maxlen": self.word_maxlen,
        }
        wrong = [name for name, value in expected.items() if getattr(tables, name) != value]
        if wrong:
            raise ValueError(
                f"{tables_path!r} is for another vocabulary or configuration "
                f"({', '.join(wrong)} differ). Delete it: the tables are rebuilt with jieba's "
                "dictionary, or with the argument `dictionary`."
            )
        self._set(vocabulary, tables)

    def get_vocabulary(self):
        """Returns the tokens in the order of the vocabulary file."""
        self._check_vocabulary()
        return list(self._vocabulary.tokens)

    def vocabulary_size(self):
        """Returns one more than the highest id."""
        self._check_vocabulary()
        return self._vocabulary.size

    def id_to_token(self, id):
        """Returns the token of an id."""
        self._check_vocabulary()
        token = self._vocabulary.token(int(id))
        if token is None:
            raise ValueError(
                f"`id` must be the id of a token, in [0, {self._vocabulary.size}). Received: {id}"
            )
        return token

    def token_to_id(self, token):
        """Returns the id of a token."""
        self._check_vocabulary()
        if token not in self._vocabulary.ids:
            raise ValueError(f"Token {token!r} is not in the vocabulary.")
        return self._vocabulary.ids[token]

    @property
    def graph(self):
        """The `GraphTokenizer`, a `tf.Module` to hold in what `tf.saved_model.save` saves."""
        self._check_vocabulary()
        return self._graph

    @property
    def graph_detokenizer(self):
        """The `GraphDetokenizer`, a `tf.Module`."""
        self._check_vocabulary()
        return self._graph_detokenizer

    def _check_vocabulary(self):
        if self._vocabulary is None:
            raise ValueError(
                "The tokenizer has no vocabulary yet. Pass `vocabulary` when creating it, or call "
                "`set_vocabulary(path)`."
            )
