"""SentencePiece: the tokenizer, and training its vocabulary."""

import functools
import hashlib
import io
import os
import tempfile
from pathlib import Path

import keras
import keras_hub
import tensorflow as tf

from roformer_tf.checkpoint.damage import check_file
from roformer_tf.checks import check_one_of
from roformer_tf.text.familiar_names import TokenizerFromPreset
from roformer_tf.text.strings import to_string_tensor

VOCABULARY_FILE = "vocabulary.spm"  # KerasHub's name
SPECIAL = {"pad": "<pad>", "unk": "<unk>", "bos": "<s>", "eos": "</s>"}


@keras.saving.register_keras_serializable(package="roformer_tf")
class RoFormerSentencePieceTokenizer(
    TokenizerFromPreset, keras_hub.tokenizers.SentencePieceTokenizer
):
    """KerasHub's SentencePiece tokenizer with the special tokens of a translation model.

    Uses TensorFlow and TensorFlow Text ops only, so the same object serves Python calls, `tf.data`
    and a SavedModel. The vocabulary is saved with the model as an asset.

    Args:
        proto: bytes. A SentencePiece model with the subwords `<pad>`, `<unk>`, `<s>` and `</s>`, as
            `train_sentencepiece` returns it; or the `pathlib.Path` of such a file. `None` leaves it
            to `load_assets`.
        **kwargs: Arguments of `keras_hub.tokenizers.SentencePieceTokenizer`.

    Call arguments:
        inputs: str, bytes, or a list, NumPy array or string tensor of them.

    Returns:
        int32 token ids without special tokens: a list of lists, or a tensor `(tokens,)` for a
        single string; in a `tf.function` or `tf.data` a RaggedTensor `(batch, tokens)`.

    Raises:
        ValueError: If the file does not exist, is not a SentencePiece model, or lacks these special
            tokens.
        TypeError: If the input is not a string.
        ImportError: If TensorFlow Text is not installed. It has no wheel for Windows.

    Example:

    >>> from roformer_tf.text import RoFormerSentencePieceTokenizer, train_sentencepiece
    >>> proto = train_sentencepiece(["a cat and a dog", "a dog and a cat"], vocabulary_size=24)
    >>> tokenizer = RoFormerSentencePieceTokenizer(proto)
    >>> tokenizer.detokenize(tokenizer(["a dog and a dog"]))
    ['a dog and a dog']
    >>> tokenizer.pad_token_id, tokenizer.start_token_id, tokenizer.end_token_id
    (0, 2, 3)

    Reference: Kudo and Richardson, arXiv 1808.06226.
    """

    def __init__(self, proto=None, **kwargs):
        for name, token in zip(("pad", "unk", "start", "end"), SPECIAL.values(), strict=True):
            self._add_special_token(token, f"{name}_token")
        for name in ("add_bos", "add_eos"):
            check_one_of(name, kwargs.get(name, False), (False, True))
        kwargs.setdefault("_allow_python_workflow", False)  # eager calls use the same ops as graphs
        super().__init__(proto=proto, **kwargs)

    def set_proto(self, proto):
        # not `str`: KerasHub rejects paths in a model's config
        if isinstance(proto, os.PathLike):
            proto = _read(proto)
        if proto is not None:
            _import_shared_model()  # KerasHub ignores an ImportError
        try:
            super().set_proto(proto)
        except (RuntimeError, tf.errors.OpError) as error:
            raise ValueError(
                "`proto` must be a SentencePiece model, as `roformer_tf.text.train_sentencepiece` "
                f"returns it. Received: {len(proto)} bytes that begin with {proto[:16]!r}"
            ) from error

    @property
    def graph(self):
        """TensorFlow Text's tokenizer, a `tf.Module` for `tf.saved_model.save`."""
        self._check_vocabulary()
        return self._sentence_piece

    def load_assets(self, dir_path):
        self.set_proto(_read(Path(dir_path) / VOCABULARY_FILE))

    def _set_proto_tf(self, proto):
        shared_model = _import_shared_model()
        super()._set_proto_tf(proto)
        self._sentence_piece._model_resource = shared_model(proto, None)

    def tokenize(self, inputs):
        """Converts strings to token ids. See the class."""
        return super().tokenize(to_string_tensor(inputs))


@functools.cache
def _import_shared_model():
    """Returns the class that holds a SentencePiece model, of TensorFlow Text."""
    try:
        from tensorflow_text.python.ops import sentencepiece_tokenizer
    except ImportError as error:
        raise ImportError(
            "`RoFormerSentencePieceTokenizer`, and so translation, needs TensorFlow Text: "
            "`pip install tensorflow-text`. It has no wheel for Windows: translate on Linux "
            "(WSL) or macOS. Everything else works without it."
        ) from error

    class SharedModel(sentencepiece_tokenizer._SentencepieceModelResource):
        """A named resource: `tf.random.set_seed` clears the kernel cache and unnamed ones with it."""

        def _create_resource(self):
            return sentencepiece_tokenizer.gen_sentencepiece_tokenizer.sentencepiece_op(
                model=self._model, shared_name=hashlib.sha256(self._model).hexdigest()
            )

    return SharedModel


def _read(file):
    check_file(Path(file), "it is the SentencePiece model, the vocabulary.")
    return Path(file).read_bytes()


def train_sentencepiece(texts, vocabulary_size, model_type="bpe", **options):
    """Trains a SentencePiece model. For translation, pass the texts of both languages.

    Texts are not normalized, except that no-break spaces become spaces, so a translation can be
    compared with a reference letter by letter. The vocabulary has every character of the texts. The
    same texts in the same order give the same bytes.

    Args:
        texts: iterable of str.
        vocabulary_size: int. Includes the four special tokens and the characters.
        model_type: `"bpe"` or `"unigram"`.
        **options: More options of the trainer, such as `byte_fallback=True` for characters that the
            texts do not have, or `input_sentence_size` to train on a sample.

    Returns:
        bytes. The model.

    Raises:
        ValueError: If the texts have too many characters, or too few different words, for this
            `vocabulary_size`.

    Example:

    >>> from roformer_tf.text import train_sentencepiece
    >>> type(train_sentencepiece(["a cat and a dog", "ein Hund"], vocabulary_size=24)).__name__
    'bytes'

    Reference: Sennrich et al. (BPE), arXiv 1508.07909; Kudo and Richardson, arXiv 1808.06226.
    """
    import sentencepiece
    from sentencepiece.sentencepiece_model_pb2 import ModelProto

    model = io.BytesIO()
    settings = {
        "model_type": model_type,
        "character_coverage": 1.0,
        "minloglevel": 2,
        "max_sentence_length": 2**30,  # by default texts longer than 4,192 bytes are dropped
    }
    for number, (name, piece) in enumerate(SPECIAL.items()):
        settings |= {f"{name}_id": number, f"{name}_piece": piece}
    try:
        with tempfile.TemporaryDirectory() as folder:
            rules = Path(folder) / "rules.tsv"
            rules.write_text("A0\t20\n2007\t20\n202F\t20\n", encoding="utf-8")
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=iter(texts),
                model_writer=model,
                vocab_size=vocabulary_size,
                **{"normalization_rule_tsv": str(rules), **settings, **options},
            )
    except RuntimeError as error:
        raise ValueError(
            f"These texts do not give a vocabulary of {vocabulary_size} subwords. Choose another "
            f"`vocabulary_size`. SentencePiece says: {error}"
        ) from error
    proto = ModelProto.FromString(model.getvalue())
    # the file was temporary; the compiled rules stay
    proto.normalizer_spec.normalization_rule_tsv = ""
    return proto.SerializeToString()
