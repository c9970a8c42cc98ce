"""The part of the tokenizer that deals with its vocabulary and its files."""

import os

from roformer_tf.checkpoint.vocabulary import Vocabulary
from roformer_tf.files import replace_file
from roformer_tf.text.graph_detokenizer import GraphDetokenizer
from roformer_tf.text.graph_tokenizer import GraphTokenizer
from roformer_tf.text.tables_cache import cached_tables
from roformer_tf.text.tokenizer_tables import TokenizerTables

VOCABULARY_FILE = "vocabulary.txt"
TABLES_FILE = "tokenizer_tables.npz"


class TokenizerAssets:
    """Mixin of `RoFormerTokenizer`: sets, saves and loads the vocabulary and the tables made from it."""

    def set_vocabulary(self, vocabulary):
        """Sets the vocabulary: a path, list of tokens, dict of token -> id, or None.

        Keeps the dictionary that a loaded layer has brought along.
        """
        if vocabulary is None:
            self._vocabulary = self._tables = self._graph = self._graph_detokenizer = None
            return
        vocabulary = self._checked(Vocabulary(vocabulary))
        dictionary = self._tables and self._tables.dictionary()
        tables = cached_tables(
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
