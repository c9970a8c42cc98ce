"""The dictionary of word-level segmentation."""

import contextlib
import gzip
import hashlib
import lzma
import os
import zlib

import jieba

from roformer_tf.files import open_compressed


class SegmentationDictionary:
    r"""Holds words and their frequencies: jieba's dictionary or another one, plus user words.

    Wraps `jieba.Tokenizer`, so adding a word means exactly what it means there. Unlike jieba it
    writes no cache file and logs nothing.

    Args:
        path: str, path-like or None. A UTF-8 text file, plain, `.gz` or `.xz`, with lines
            `word frequency [tag]`. None uses jieba's own dictionary of 349,045 words.
        user_words: None, an iterable of words, or a mapping from words to frequencies. They are
            added in this order by `add_word`. A frequency of 0 deletes the word.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If a line is not `word frequency`, a word is empty or not a string, or a
            compressed file is damaged.

    Example:

    >>> import os, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "dict.txt")
    >>> with open(path, "w", encoding="utf-8") as file:
    ...     _ = file.write("追 10\n一 50\n科技 20\n")
    >>> words = SegmentationDictionary(path)
    >>> words.cut("追一科技")
    ['追', '一', '科技']
    >>> words.add_word("追一")
    >>> words.cut("追一科技")
    ['追一', '科技']

    Source: `jieba.Tokenizer` of jieba 0.42.1.
    """

    def __init__(self, path=None, user_words=None):
        with _open_dictionary(path) as file:
            try:
                self._set(*jieba.Tokenizer.gen_pfdict(file))
            except ValueError as error:
                raise ValueError(
                    f"Each line of the dictionary must be a word, a space and an integer. {error}"
                ) from error
        if not self.total:
            raise ValueError(f"The dictionary {path!r} has no words with a frequency above 0.")
        for word, frequency in list_user_words(user_words):
            self.add_word(word, frequency)

    @classmethod
    def from_frequencies(cls, frequencies, total):
        """Builds a dictionary from the `frequencies` and `total` of another one.

        After an edit `total` is not the sum of the frequencies: jieba only ever adds to it.

        >>> SegmentationDictionary.from_frequencies({"追": 1, "追一": 9}, 10).cut("追一")
        ['追一']
        """
        dictionary = cls.__new__(cls)
        dictionary._set(dict(frequencies), total)
        return dictionary

    def _set(self, frequencies, total):
        self._jieba = jieba.Tokenizer()
        self._jieba.FREQ, self._jieba.total = frequencies, total
        self._jieba.initialized = True

    @property
    def frequencies(self):
        """Dict of word -> frequency. 0 marks prefixes of words and deleted words."""
        return self._jieba.FREQ

    @property
    def total(self):
        """The number by which frequencies are divided."""
        return self._jieba.total

    def add_word(self, word, frequency=None):
        """Adds a word, or changes its frequency. None makes it just frequent enough to be found.

        Words are not normalized. A tokenizer with `lowercase=True` segments lower-cased text
        without accents, so pass words in that form.
        """
        if not isinstance(word, str) or not word:
            raise ValueError(f"A user word must be a non-empty string. Received: {word!r}")
        if frequency is not None and int(frequency) < 0:
            raise ValueError(
                "The frequency of a user word must be 0 (delete) or more, or None. "
                f"Received: {word!r}: {frequency!r}"
            )
        # Not jieba's own add_word: a frequency of 0 would also change jieba's hidden Markov
        # model for the whole process
        if frequency is None:
            frequency = self._jieba.suggest_freq(word)
        if int(frequency) > 0:
            self._jieba.add_word(word, int(frequency))
            return
        for end in range(1, len(word)):
            self._jieba.FREQ.setdefault(word[:end], 0)
        self._jieba.FREQ[word] = 0

    def del_word(self, word):
        """Deletes a word, so that its characters are segmented otherwise."""
        self.add_word(word, 0)

    def suggest_freq(self, segment, tune=False):
        """Returns the frequency at which a word is found, or is split.

        Args:
            segment: str, a word to keep whole; or a tuple of the parts to split it into.
            tune: bool. Whether to set that frequency, too.

        Returns:
            int.
        """
        frequency = self._jieba.suggest_freq(segment)
        if tune:
            self.add_word("".join(segment), frequency)
        return frequency

    def cut(self, text):
        """Segments a text in Python: `jieba.lcut(text, HMM=False)`."""
        return self._jieba.lcut(text, HMM=False)


@contextlib.contextmanager
def _open_dictionary(path):
    """Opens a dictionary file, by default jieba's, and decompresses it."""
    if path is None:
        path = os.path.join(os.path.dirname(jieba.__file__), "dict.txt")
    if not os.path.isfile(path):
        raise FileNotFoundError(
            f"There is no dictionary file {os.fspath(path)!r}. Pass the path of a text file "
            "with lines `word frequency`, or None for jieba's dictionary."
        )
    try:
        with open_compressed(path) as (file, _):
            yield file
    except (gzip.BadGzipFile, EOFError, zlib.error, lzma.LZMAError) as error:
        raise ValueError(
            "The dictionary must be a complete file of the format that its name says. Received: "
            f"{os.fspath(path)!r} ({error}). Compress or copy it again, or pass the text file."
        ) from error


def list_user_words(user_words):
    """Lists (word, frequency or None), given a list of words or a mapping.

    >>> list_user_words(["追一"]), list_user_words({"追一": 9})
    ([('追一', None)], [('追一', 9)])
    """
    if isinstance(user_words, str):
        raise ValueError(
            "`user_words` must be a list of words or a mapping from words to frequencies. "
            f"Received the string {user_words!r}; did you mean [{user_words!r}]?"
        )
    if hasattr(user_words, "items"):
        return [(word, n if n is None else int(n)) for word, n in user_words.items()]
    return [(word, None) for word in user_words or ()]


def dictionary_digest(path):
    """Returns the SHA-256 digest of a dictionary's text in hexadecimal."""
    with _open_dictionary(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
