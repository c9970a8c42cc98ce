"""The original tokenizer of RoFormer as a Keras layer."""

import os

import keras
import keras_hub
import tensorflow as tf
from keras_hub.src.utils.tensor_utils import preprocessing_function

from roformer_tf.checkpoint import open_folder
from roformer_tf.checkpoint.vocabulary import Vocabulary
from roformer_tf.files import replace_file
from roformer_tf.naming import automatic_name
from roformer_tf.text.graph_detokenizer import GraphDetokenizer
from roformer_tf.text.graph_tokenizer import GraphTokenizer, tokenize_with_word_starts
from roformer_tf.text.pair_packer import join_segments, to_ragged_ids, truncation_index
from roformer_tf.text.strings import map_strings, to_string_tensor
from roformer_tf.text.tokenizer_tables import TokenizerTables, load_or_build_tables

VOCABULARY_FILE = "vocabulary.txt"
TABLES_FILE = "tokenizer_tables.npz"


@keras.saving.register_keras_serializable(package="roformer_tf")
class RoFormerTokenizer(keras_hub.tokenizers.Tokenizer):
    r"""The original tokenizer of RoFormer: the token ids of bert4keras on every input.

    Word level, as the released word models were trained: lower case and accents off, jieba's
    segmentation by dictionary (`HMM=False`), a word of the vocabulary is one token, any other
    goes through BERT's basic tokenizer and WordPiece.  Character level: the same without jieba.

    All of it is core TensorFlow ops.  The layer runs eagerly under every Keras backend, in
    `tf.data`, in a `tf.function`; and a `tf.Module` that holds `tokenizer.graph` can be saved by
    `tf.saved_model.save` and used where there is no Python package but TensorFlow.

    Making the tables of jieba's dictionary takes about four seconds.  They are kept among the
    assets of a saved layer, and in a folder on disk for the next time (see `tables_cache`:
    `ROFORMER_TF_CACHE`).

    Args:
        vocabulary: path of a vocabulary file, list of tokens, or dict of token -> id as
            `load_vocabulary` gives. None: set later, by `set_vocabulary` or `load_assets`.
        word_level: bool. False for character level.
        lowercase: bool. False leaves case and accents as they are.
        user_words: list of words, or mapping of words to frequencies, added to the dictionary as
            `jieba.add_word` does; a frequency of 0 deletes the word.  Words are taken as they
            are: with `lowercase=True` give them in lower case.
        dictionary: path of a dictionary in jieba's format. None: the one that comes with jieba.
        pad_token, unk_token, start_token, end_token, mask_token: str, looked up in the
            vocabulary. All but `unk_token` may be None where a vocabulary has none.
        word_maxlen: int. A longer word that is not in the vocabulary is [UNK].
        sequence_length: int or None. Cut and pad every row to this length.
        dtype: `"int32"`.
        **kwargs: of the Keras layer.

    Call arguments:
        inputs: str, bytes, a (nested) list, NumPy array or string tensor of them.

    Returns:
        int32 token ids without special tokens. As everywhere in KerasHub: in a `tf.function` or
        `tf.data` a RaggedTensor (batch, tokens); in an eager call a list of lists; for a single
        string a tensor (tokens,); with `sequence_length` a dense tensor.

    Odd input is defined:

    * An invalid byte counts as one U+FFFD, as in `bytes.decode(errors="replace")`.
    * U+FFFD, NUL and control characters are dropped. At character level what is around them
      closes up ("a\0b" is one word), at word level they part words.
    * A lone surrogate in a Python string is an unknown letter.
    * An empty or blank string has no tokens, an empty batch no rows.
    * Special tokens in a text, such as "[MASK]", are text.
    * No length limit: time is linear, 1 MB takes seconds.

    Raises:
        FileNotFoundError: no such vocabulary or dictionary file.
        ValueError: a vocabulary that is empty, not UTF-8, lacks a special token or has white space
            in a token; a broken dictionary; a call before the vocabulary is set.
        TypeError: input that is no string.

    Example:

    >>> vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "追", "一", "ro", "##former"]
    >>> tokenizer = RoFormerTokenizer(vocabulary, word_level=False)
    >>> tokenizer(["追一RoFormer", "三"])
    [[5, 6, 7, 8], [1]]
    >>> tokenizer.detokenize([2, 5, 6, 7, 8, 3])
    '追一roformer'

    Word level, with a dictionary of one's own and a user word:

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
        special = {
            "pad_token": pad_token,
            "unk_token": unk_token,
            "start_token": start_token,
            "end_token": end_token,
            "mask_token": mask_token,
        }
        for name, token in special.items():
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
            preset: str or path. An original or Hugging Face folder with a `vocab.txt`, or one written
                by `save_to_preset`.
            **kwargs: Arguments of the class. In a checkpoint `word_level` defaults to whether the
                vocabulary has Chinese words.

        Returns:
            RoFormerTokenizer.

        Raises:
            FileNotFoundError: If there is no such folder, or it has no vocabulary.
            ValueError: If the folder holds another kind of tokenizer. The message names its class.
        """
        if "://" in str(preset):  # KerasHub downloads it
            return super().from_preset(str(preset), **kwargs)
        folder = open_folder(preset)
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
            "pad_token": self.pad_token,
            "unk_token": self.unk_token,
            "start_token": self.start_token,
            "end_token": self.end_token,
            "mask_token": self.mask_token,
            "word_maxlen": self.word_maxlen,
            "sequence_length": self.sequence_length,
        }

    @classmethod
    def from_config(cls, config):
        if isinstance(config.get("vocabulary"), str):
            # as KerasHub: a configuration out of an archive must not make anyone read a file
            raise ValueError(
                "The configuration of a tokenizer must not name a vocabulary file. "
                f"Received: vocabulary={config['vocabulary']!r}. Remove it and call "
                "`set_vocabulary(path)` on the new tokenizer."
            )
        return cls(**config)

    # -- strings and ids

    # not decorated: KerasHub's conversion of a list of strings takes, for each, the space of the
    # longest one; `to_string_tensor` does not
    def call(self, inputs, *args, training=None, **kwargs):
        return self.tokenize(inputs, *args, **kwargs)

    def tokenize(self, inputs):
        """Strings to token ids: see the class."""
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
        """Token ids, and the part of the text that each token stands for.

        Args:
            inputs: as of the layer.

        Returns:
            Three times the structure of `tokenize` (`sequence_length` does not count here): ids;
            starts; ends. `text[start:end]`, in characters of the original string, is what became
            the token; dropped characters at its end, such as accents, are not counted.

        Example:

        >>> vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "café", "cafe", "!"]
        >>> tokenizer = RoFormerTokenizer(vocabulary, word_level=False)
        >>> ids, starts, ends = tokenizer.tokenize_with_offsets(["  Café!"])
        >>> ids, starts, ends
        ([[6, 7]], [[2, 6]], [[6, 7]])

        Source: `Tokenizer.rematch` of bert4keras 0.11.5, whose places count in the lower-cased
        text; that is one longer for each "İ" (U+0130).
        """
        self._check_vocabulary()
        return self._tokenize_with_offsets(to_string_tensor(inputs))

    @preprocessing_function
    def _tokenize_with_offsets(self, texts):
        return map_strings(self._graph.tokenize_with_offsets, texts)

    def tokenize_with_word_starts(self, inputs, segmenter=None):
        """Token ids, and which tokens begin a word, as whole-word masking needs it.

        A word is, at word level, what jieba's segmentation gives, in the vocabulary or not; at
        character level a token of BERT's basic tokenizer: a Chinese character, a punctuation mark,
        or all pieces of a run of letters.  [UNK] for a run is one word.  With a `segmenter` the
        Chinese characters of one of its words, and what else it holds, belong together.

        Args:
            inputs: as of the layer.
            segmenter: None, or a word-level `RoFormerTokenizer`, whose words count instead of the
                character level's own, as in Chinese-BERT-wwm.  Its vocabulary plays no part.

        Returns:
            Twice the structure of `tokenize` (`sequence_length` does not count here): ids; bools.

        Raises:
            ValueError: a `segmenter` that is not of word level, or where this one is itself.

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
                "`segmenter` gives the words of a word-level tokenizer to one of character level. "
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
        """Token ids to readable text.

        Args:
            inputs: integer ids, (tokens,) or (batch, tokens); list, array, dense or ragged tensor.

        Returns:
            The text, or a list of texts; in a `tf.function` a string tensor.  Special tokens,
            padding among them, are left out.

        Raises:
            tf.errors.InvalidArgumentError: an id that is not in the vocabulary.

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
        """`[CLS] first [SEP]`, or `[CLS] first [SEP] second [SEP]`, truncated as the original does.

        While there are more than `maxlen` tokens, one is dropped from the longest text, from the
        first of two equally long ones.  For the padded inputs of a model see `PairPacker`.

        Args:
            first, second: str or batch of strings, both alike; `second` may be None.
            maxlen: int or None. The highest number of tokens with the special ones.
            truncate_from: `"right"`, `"left"`, or int: a place in each text with its special
                tokens, at which tokens are dropped.
            pattern: `"S*E*E"`; or `"S*ES*E"`, which gives the second text a start token too.

        Returns:
            token_ids, segment_ids: like `tokenize`.

        Raises:
            ValueError: `maxlen`, `truncate_from` or `pattern` is of no such form.
            tf.errors.InvalidArgumentError: no token at the place `truncate_from` of a text.

        Example:

        >>> vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c"]
        >>> tokenizer = RoFormerTokenizer(vocabulary, word_level=False)
        >>> tokenizer.encode(["a b c", "c"], ["b", "a b"], maxlen=6)
        ([[2, 5, 6, 3, 6, 3], [2, 7, 3, 5, 6, 3]], [[0, 0, 0, 0, 1, 1], [0, 0, 0, 1, 1, 1]])

        Source: `TokenizerBase.encode` of bert4keras 0.11.5.
        """
        self._check_vocabulary()
        if pattern not in ("S*E*E", "S*ES*E"):
            raise ValueError(f"`pattern` must be 'S*E*E' or 'S*ES*E'. Received: {pattern!r}")
        if maxlen is not None and (not isinstance(maxlen, int) or maxlen < 0):
            raise ValueError(f"`maxlen` must be None or a whole number. Received: {maxlen!r}")
        texts = (first,) if second is None else (first, second)
        texts = tuple(map(to_string_tensor, texts))
        ranks = {text.shape.rank for text in texts}
        if not ranks <= {0, 1} or len(ranks) > 1:
            raise ValueError(
                "`encode` takes strings or batches of strings, both texts alike. Received shapes: "
                f"{[tuple(text.shape) for text in texts]}"
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

        Keeps the dictionary that a loaded layer has brought along.
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
        wanted = {getattr(self, name) for name in self._special_token_attrs}
        missing = sorted(wanted - set(vocabulary.ids))
        if missing:
            tip = "Check that the file is the `vocab.txt` of the checkpoint"
            if vocabulary.tokens[0].startswith("\ufeff"):
                tip = "Its first line begins with a byte order mark: save it as UTF-8 without one"
            raise ValueError(
                f"The vocabulary lacks the special tokens {missing}; it has {vocabulary.size} "
                f"tokens that begin with {vocabulary.tokens[:3]}. {tip}; or name its own special "
                "tokens, e.g. `mask_token=None` where there is none."
            )
        return vocabulary

    def _set(self, vocabulary, tables):
        self._vocabulary, self._tables = vocabulary, tables
        self._graph = GraphTokenizer(tables)
        self._graph_detokenizer = GraphDetokenizer(vocabulary)
        self._update_special_token_ids()

    def save_assets(self, dir_path):
        """Writes the vocabulary and the tables, with the dictionary in them, into a folder."""
        self._check_vocabulary()
        with replace_file(os.path.join(dir_path, VOCABULARY_FILE)) as file:
            file.write("".join(f"{token}\n" for token in self._vocabulary.tokens).encode())
        self._tables.save(os.path.join(dir_path, TABLES_FILE))

    def load_assets(self, dir_path):
        """Reads what `save_assets` wrote; where there are no tables they are made anew."""
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
                f"{tables_path!r} was made for another vocabulary or configuration "
                f"({', '.join(wrong)} differ). Delete it: the tables are made anew, with jieba's "
                "dictionary or the one named by `dictionary`."
            )
        self._set(vocabulary, tables)

    def get_vocabulary(self):
        """The tokens in the order of the vocabulary file."""
        self._check_vocabulary()
        return list(self._vocabulary.tokens)

    def vocabulary_size(self):
        """One more than the highest id."""
        self._check_vocabulary()
        return self._vocabulary.size

    def id_to_token(self, id):
        """The token of an id."""
        self._check_vocabulary()
        token = self._vocabulary.token(int(id))
        if token is None:
            raise ValueError(
                f"`id` must be the id of a token, in [0, {self._vocabulary.size}). Received: {id}"
            )
        return token

    def token_to_id(self, token):
        """The id of a token."""
        self._check_vocabulary()
        if token not in self._vocabulary.ids:
            raise ValueError(f"Token {token!r} is not in the vocabulary.")
        return self._vocabulary.ids[token]

    @property
    def graph(self):
        """The `GraphTokenizer`, a `tf.Module`: to track in what `tf.saved_model.save` shall save."""
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
