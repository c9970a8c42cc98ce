"""The dictionary that word-level segmentation walks through."""

import hashlib
import os

import jieba


class SegmentationDictionary:
    r"""Words and their frequencies: jieba's dictionary, or one of its format, and user words.

    A thin cover of `jieba.Tokenizer`, so that adding a word means here exactly what it means
    there.  Unlike jieba it keeps no cache in the folder for temporary files and logs nothing.

    Args:
        path: str, path-like or None. A UTF-8 text file of lines `word frequency [tag]`.
            None: the dictionary that comes with jieba, 349,045 words.
        user_words: None, an iterable of words, or a mapping of words to frequencies; added in
            this order by `add_word`.  A frequency of 0 deletes the word.

    Raises:
        FileNotFoundError: no such file.
        ValueError: a line that is not `word frequency`; a word that is empty or no string.

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
        self._jieba = jieba.Tokenizer()
        try:
            with open_dictionary(path) as file:
                self._jieba.FREQ, self._jieba.total = jieba.Tokenizer.gen_pfdict(file)
        except ValueError as error:
            raise ValueError(
                f"The dictionary must have a word, a space and a whole number on each line. {error}"
            ) from error
        if not self._jieba.total:
            raise ValueError(f"The dictionary {path!r} has no words with a frequency above 0.")
        self._jieba.initialized = True
        for word, frequency in list_user_words(user_words):
            self.add_word(word, frequency)

    @classmethod
    def from_frequencies(cls, frequencies, total):
        """A dictionary from what `frequencies` and `total` of another one give.

        `total` is not the sum of the frequencies once a word was changed: jieba only ever adds to it.

        >>> SegmentationDictionary.from_frequencies({"追": 1, "追一": 9}, 10).cut("追一")
        ['追一']
        """
        dictionary = cls.__new__(cls)
        dictionary._jieba = jieba.Tokenizer()
        dictionary._jieba.FREQ, dictionary._jieba.total = dict(frequencies), total
        dictionary._jieba.initialized = True
        return dictionary

    @property
    def frequencies(self):
        """Dict of word -> frequency; 0 marks the beginnings of words and deleted words."""
        return self._jieba.FREQ

    @property
    def total(self):
        """The number that frequencies are divided by."""
        return self._jieba.total

    def add_word(self, word, frequency=None):
        """Adds a word, or changes its frequency; None: just high enough for it to be found.

        Words are taken as they are.  A tokenizer with `lowercase=True` cuts text that is in lower
        case and without accents, so give it words of that form.
        """
        if not isinstance(word, str) or not word:
            raise ValueError(f"A user word must be a string, not empty. Received: {word!r}")
        if frequency is not None and int(frequency) < 0:
            raise ValueError(
                "The frequency of a user word must be 0 (delete) or more, or None. "
                f"Received: {word!r}: {frequency!r}"
            )
        # not jieba's add_word itself: for a frequency of 0 that also changes, for the whole
        # process, the hidden Markov model of jieba, which takes no part here
        if frequency is None:
            frequency = self._jieba.suggest_freq(word)
        if int(frequency) > 0:
            self._jieba.add_word(word, int(frequency))
            return
        for end in range(1, len(word)):
            self._jieba.FREQ.setdefault(word[:end], 0)
        self._jieba.FREQ[word] = 0

    def del_word(self, word):
        """Deletes a word: its characters are cut apart, or become parts of other words."""
        self.add_word(word, 0)

    def suggest_freq(self, segment, tune=False):
        """The frequency at which a word is found, or is cut apart.

        Args:
            segment: str, a word that shall stay whole; or a tuple of the parts that shall be cut.
            tune: bool. Also set that frequency.

        Returns:
            int.
        """
        frequency = self._jieba.suggest_freq(segment)
        if tune:
            self.add_word("".join(segment), frequency)
        return frequency

    def cut(self, text):
        """The words of a text, in Python: `jieba.lcut(text, HMM=False)`."""
        return self._jieba.lcut(text, HMM=False)


def open_dictionary(path):
    """Opens a dictionary file for reading bytes; None: the one that comes with jieba."""
    if path is None:
        path = os.path.join(os.path.dirname(jieba.__file__), "dict.txt")
    if not os.path.isfile(path):
        raise FileNotFoundError(
            f"There is no dictionary file {os.fspath(path)!r}. Give the path of a text file of "
            "lines `word frequency`, or None for the dictionary of jieba."
        )
    return open(path, "rb")


def list_user_words(user_words):
    """-> list of (word, frequency or None), from a list of words or a mapping.

    >>> list_user_words(["追一"]), list_user_words({"追一": 9})
    ([('追一', None)], [('追一', 9)])
    """
    if isinstance(user_words, str):
        raise ValueError(
            "`user_words` must be a list of words or a mapping of words to frequencies. "
            f"Received the string {user_words!r}; did you mean [{user_words!r}]?"
        )
    if hasattr(user_words, "items"):
        return list(user_words.items())
    return [(word, None) for word in user_words or ()]


def dictionary_digest(path):
    """SHA-256 of a dictionary file, in hexadecimal digits."""
    with open_dictionary(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
