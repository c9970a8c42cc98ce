"""`bert4keras.tokenizers`: WordPiece in Python, one text at a time.

`roformer_tf.text.RoFormerTokenizer` gives the same ids for many texts at once, in a graph.
"""

import re
import unicodedata

from roformer_tf.checkpoint.vocabulary import (
    is_cjk,
    is_punctuation,
    is_redundant,
    load_vocabulary,
    simplify_vocabulary,
)
from roformer_tf.compat import names_not_offered
from roformer_tf.compat.bert4keras.snippets import lowercase_and_normalize, truncate_sequences
from roformer_tf.files import replace_file
from roformer_tf.text.graph_detokenizer import CJK_PUNCTUATION, WORD, describe, replacements
from roformer_tf.text.pair_packer import truncation_index
from roformer_tf.text.tokenizer_tables import word_pieces


def load_vocab(dict_path, encoding="utf-8", simplified=False, startswith=None):
    """Returns a dict from token to id, of a vocabulary file with one token on each line.

    `simplified=True` drops the tokens that a character-level tokenizer cannot produce, puts those of
    the list `startswith` first, and returns the ids that are left too: the `keep_tokens` of
    `build_transformer_model`.

    >>> import os, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "vocab.txt")
    >>> save_vocab(path, {"[PAD]": 0, "[UNK]": 1, "##中": 2, "中": 3})
    >>> load_vocab(path, simplified=True, startswith=["[PAD]", "[UNK]"])
    ({'[PAD]': 0, '[UNK]': 1, '中': 2}, [0, 1, 3])
    """
    ids = load_vocabulary(dict_path, encoding)
    return simplify_vocabulary(ids, startswith or []) if simplified else ids


def save_vocab(dict_path, token_dict, encoding="utf-8"):
    """Writes a vocabulary file, one token on each line."""
    with replace_file(dict_path) as file:
        for token in sorted(token_dict, key=token_dict.get):
            file.write(f"{token}\n".encode(encoding))


class TokenizerBase:
    """What all tokenizers share.

    Subclasses implement `_tokenize`, `token_to_id`, `id_to_token` and `decode`.

    Args:
        token_start, token_end: str, or `None` for none. First and last token of a text.
        pre_tokenize: Function from a text to its words, such as `jieba.lcut`.
        token_translate: dict. Tokens that replace others.
    """

    def __init__(
        self, token_start="[CLS]", token_end="[SEP]", pre_tokenize=None, token_translate=None
    ):
        self._token_pad, self._token_unk, self._token_mask = "[PAD]", "[UNK]", "[MASK]"
        self._token_start, self._token_end = token_start, token_end
        self._pre_tokenize = pre_tokenize
        self._token_translate = token_translate or {}

    def tokenize(self, text, maxlen=None):
        """Returns the tokens of a text, with the first and the last one."""
        tokens = [self._token_translate.get(token) or token for token in self._tokenize(text)]
        if self._token_start is not None:
            tokens.insert(0, self._token_start)
        if self._token_end is not None:
            tokens.append(self._token_end)
        if maxlen is not None:
            truncate_sequences(maxlen, -1 - (self._token_end is not None), tokens)
        return tokens

    def tokens_to_ids(self, tokens):
        """Returns the ids of tokens."""
        return [self.token_to_id(token) for token in tokens]

    def ids_to_tokens(self, ids):
        """Returns the tokens of ids."""
        return [self.id_to_token(i) for i in ids]

    def encode(
        self, first_text, second_text=None, maxlen=None, pattern="S*E*E", truncate_from="right"
    ):
        """Returns the lists of token ids and segment ids of a text or of a pair.

        Args:
            first_text, second_text: str, or list of tokens.
            maxlen: int. Longer ones lose tokens of the longer text.
            pattern: str. With `"S*E*E"` the second text has no first token.
            truncate_from: `"right"`, `"left"`, or the index of the token to remove.
        """
        first, second = (
            self.tokenize(text) if isinstance(text, str) else text
            for text in (first_text, second_text)
        )
        joined = second is not None and pattern == "S*E*E"
        if maxlen is not None:
            marks = self._token_start is not None, self._token_end is not None
            index = truncation_index(truncate_from, *marks)
            truncate_sequences(maxlen + joined, index, first, second)
        ids = self.tokens_to_ids(first)
        segments = [0] * len(ids)
        if second is not None:
            second = second[int(bool(self._token_start)) :] if joined else second
            ids += self.tokens_to_ids(second)
            segments += [1] * len(second)
        return ids, segments


class Tokenizer(TokenizerBase):
    """BERT's tokenizer: characters and words, then WordPiece.

    Args:
        token_dict: Path of a vocabulary file, or dict from token to id.
        do_lower_case: bool.
        word_maxlen: int. Longer words are unknown.
        **kwargs: Arguments of `TokenizerBase`.

    >>> tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "今", "天", "play", "##ing"]
    >>> tokenizer = Tokenizer({token: i for i, token in enumerate(tokens)}, do_lower_case=True)
    >>> tokenizer.encode("今天Playing")
    ([2, 4, 5, 6, 7, 3], [0, 0, 0, 0, 0, 0])
    >>> tokenizer.rematch("今天Playing", tokenizer.tokenize("今天Playing"))
    [[], [0], [1], [2, 3, 4, 5], [6, 7, 8], []]
    """

    def __init__(self, token_dict, do_lower_case=False, word_maxlen=200, **kwargs):
        super().__init__(**kwargs)
        token_dict = token_dict if isinstance(token_dict, dict) else load_vocab(token_dict)
        self._do_lower_case = do_lower_case
        self._token_dict = token_dict
        self._token_dict_inv = {i: token for token, i in token_dict.items()}
        self._vocab_size = len(token_dict)
        self._word_maxlen = word_maxlen
        for name in ("pad", "unk", "mask", "start", "end"):
            token = getattr(self, f"_token_{name}")
            if token in token_dict:
                setattr(self, f"_token_{name}_id", token_dict[token])

    def token_to_id(self, token):
        """Returns the id of a token; that of `[UNK]` for unknown ones."""
        return self._token_dict.get(token, self._token_unk_id)

    def id_to_token(self, i):
        """Returns the token of an id."""
        return self._token_dict_inv[i]

    def _tokenize(self, text, pre_tokenize=True):
        if self._do_lower_case:
            text = lowercase_and_normalize(text)
        if pre_tokenize and self._pre_tokenize is not None:
            tokens = []
            for word in self._pre_tokenize(text):
                tokens += [word] if word in self._token_dict else self._tokenize(word, False)
            return tokens
        chars = []
        for char in text:
            if self._is_punctuation(char) or self._is_cjk_character(char):
                chars.append(f" {char} ")
            elif self._is_space(char):
                chars.append(" ")
            elif char not in "\0\ufffd" and not self._is_control(char):
                chars.append(char)
        parts = map(self._word_piece_tokenize, "".join(chars).split())
        return [piece for part in parts for piece in part]

    def _word_piece_tokenize(self, word):
        return word_pieces(word, self._token_dict, self._word_maxlen)

    def decode(self, ids, tokens=None):
        """Returns the text of ids, or of `tokens` in their place, without special tokens."""
        text = ""
        for token in tokens or self.ids_to_tokens(ids):
            written, kind, _ = describe(token)
            if kind == WORD and not (text and is_cjk(text[-1])):
                text += " "
            text += written
        for pattern, replacement in replacements():
            text = re.sub(pattern, replacement, text)
        return text

    def rematch(self, text, tokens):
        """Returns for each token of `tokenize` the list of its characters' places in the text."""
        chars, places = [], []
        for place, char in enumerate(text.lower() if self._do_lower_case else text):
            char = lowercase_and_normalize(char) if self._do_lower_case else char
            for part in char:
                if part not in "\0\ufffd" and not self._is_control(part):
                    chars.append(part)
                    places.append(place)
        normalized, end, matches = "".join(chars), 0, []
        for token in tokens:
            if self._is_special(token):
                matches.append([])
                continue
            token = self.stem(token)
            start = normalized.index(token, end)
            end = start + len(token)
            matches.append(places[start:end])
        return matches

    @staticmethod
    def stem(token):
        """Returns a token without `##`."""
        return token.removeprefix("##")

    @staticmethod
    def _is_special(token):
        return token[:1] == "[" and token[-1:] == "]"

    @staticmethod
    def _is_space(char):
        return char in " \n\r\t" or unicodedata.category(char) == "Zs"

    @staticmethod
    def _is_control(char):
        return unicodedata.category(char) in ("Cc", "Cf")

    @staticmethod
    def _cjk_punctuation():
        return CJK_PUNCTUATION

    _is_punctuation = staticmethod(is_punctuation)
    _is_cjk_character = staticmethod(is_cjk)
    _is_redundant = staticmethod(is_redundant)


_HINTS = {"SpTokenizer": "Use roformer_tf.text.RoFormerSentencePieceTokenizer."}
__getattr__ = names_not_offered(__name__, _HINTS)
