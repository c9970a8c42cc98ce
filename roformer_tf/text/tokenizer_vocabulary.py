"""The vocabulary of a tokenizer, and its files."""

import os

from roformer_tf.checkpoint.vocabulary import Vocabulary, assign_ids
from roformer_tf.files import replace_file
from roformer_tf.text.graph_detokenizer import GraphDetokenizer
from roformer_tf.text.graph_tokenizer import GraphTokenizer
from roformer_tf.text.marked_tokens import MarkedTokens, checked_new_tokens
from roformer_tf.text.tokenizer_tables import TokenizerTables, load_or_build_tables

VOCABULARY_FILE = "vocabulary.txt"
TABLES_FILE = "tokenizer_tables.npz"


class TokenizerVocabulary:
    """The part of `RoFormerTokenizer` that holds, looks up, saves and loads its vocabulary."""

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
            ValueError: If a token is empty, no string, or has white space; or if new tokens would
                get ids of others, because the vocabulary repeats tokens at its end.

        Example:

        >>> from roformer_tf.text import RoFormerTokenizer
        >>> vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "天", "气"]
        >>> tokenizer = RoFormerTokenizer(vocabulary, word_level=False)
        >>> tokenizer.add_tokens(["天气", "<city>"])
        2
        >>> tokenizer(["<city>天气天"])
        [[8, 7, 5]]
        """
        self._check_vocabulary()
        tokens = checked_new_tokens(tokens)
        new = [token for token in tokens if token not in self._vocabulary.ids]
        grown = [*self._vocabulary.tokens, *new]
        ids = assign_ids(grown)
        if new and ids[new[0]] < self._vocabulary.size:
            raise ValueError(
                "The vocabulary repeats tokens at its end, so that a new token would get the id of "
                "another one. Remove the repeated lines at the end of its file. Received: a last "
                f"token {self._vocabulary.tokens[-1]!r}"
            )
        self.added_tokens += [token for token in tokens if token not in self.added_tokens]
        self.set_vocabulary(grown)
        return len(new)

    def _checked(self, vocabulary):
        needed = {getattr(self, name) for name in self._special_token_attrs}
        missing = needed.union(self.added_tokens) - set(vocabulary.ids)
        if missing:
            tip = "Check that the file is the checkpoint's `vocab.txt`"
            if vocabulary.tokens[0].startswith("\ufeff"):
                tip = "Its first line begins with a byte order mark: save it as UTF-8 without one"
            raise ValueError(
                f"The vocabulary lacks the special or added tokens {sorted(missing)}; it has {vocabulary.size} "
                f"tokens that begin with {vocabulary.tokens[:3]}. {tip}; or pass its own special "
                "tokens, e.g. `mask_token=None` if it has none."
            )
        return vocabulary

    def _set(self, vocabulary, tables):
        self._vocabulary, self._tables = vocabulary, tables
        self._graph = GraphTokenizer(tables)
        marked = self.marked_tokens()
        if marked:
            self._graph = MarkedTokens(self._graph, marked)
        self._graph_detokenizer = GraphDetokenizer(vocabulary)
        self._update_special_token_ids()

    def marked_tokens(self) -> dict[str, int]:
        """Returns the ids of the tokens that are found in a text as they are written."""
        marked = set(self.added_tokens)
        if self.special_tokens_in_strings:
            marked |= {getattr(self, name) for name in self._special_token_attrs}
        return {token: self._vocabulary.ids[token] for token in sorted(marked)}

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

    def get_vocabulary(self) -> list[str]:
        """Returns the tokens in the order of the vocabulary file."""
        self._check_vocabulary()
        return list(self._vocabulary.tokens)

    def vocabulary_size(self) -> int:
        """Returns one more than the highest id."""
        self._check_vocabulary()
        return self._vocabulary.size

    def id_to_token(self, id: int) -> str:
        """Returns the token of an id."""
        self._check_vocabulary()
        token = self._vocabulary.token(int(id))
        if token is None:
            raise ValueError(
                f"`id` must be the id of a token, in [0, {self._vocabulary.size}). Received: {id}"
            )
        return token

    def token_to_id(self, token: str) -> int:
        """Returns the id of a token."""
        self._check_vocabulary()
        if token not in self._vocabulary.ids:
            raise ValueError(f"Token {token!r} is not in the vocabulary.")
        return self._vocabulary.ids[token]

    @property
    def graph(self) -> GraphTokenizer | MarkedTokens:
        """The `GraphTokenizer`, a `tf.Module` to hold in what `tf.saved_model.save` saves."""
        self._check_vocabulary()
        return self._graph

    @property
    def graph_detokenizer(self) -> GraphDetokenizer:
        """The `GraphDetokenizer`, a `tf.Module`."""
        self._check_vocabulary()
        return self._graph_detokenizer

    def _check_vocabulary(self):
        if self._vocabulary is None:
            raise ValueError(
                "The tokenizer has no vocabulary yet. Pass `vocabulary` when creating it, or call "
                "`set_vocabulary(path)`."
            )
