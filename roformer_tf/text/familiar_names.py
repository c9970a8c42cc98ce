"""What all tokenizers share: `from_preset`, and errors for names of bert4keras and Hugging Face."""

from typing import Self

from keras_hub.src.utils.preset_utils import KerasPresetLoader

from roformer_tf.checkpoint.folder import checked_folder, is_kerashub_source
from roformer_tf.checkpoint.saving import SavedWhole
from roformer_tf.naming import automatic_name

# What to use instead of the names of bert4keras, then of Hugging Face.
_INSTEAD = {
    "`tokenize_with_offsets(text)`, or `encode(text, return_offsets=True)`": "rematch",
    "`get_vocabulary()`, the tokens by id, or `token_to_id(token)`": "_token_dict",
    "`get_vocabulary()`, the tokens by id, or `id_to_token(id)`": "_token_dict_inv",
    "`start_token`": "_token_start cls_token bos_token",
    "`end_token`": "_token_end sep_token eos_token",
    "`mask_token`": "_token_mask",
    "`pad_token`": "_token_pad",
    "`unk_token`": "_token_unk",
    "`start_token_id`": "_token_start_id cls_token_id bos_token_id",
    "`end_token_id`": "_token_end_id sep_token_id eos_token_id",
    "`mask_token_id`": "_token_mask_id",
    "`pad_token_id`": "_token_pad_id",
    "`unk_token_id`": "_token_unk_id",
    "`vocabulary_size()`": "_vocab_size vocab_size",
    "`[tokenizer.id_to_token(id) for id in ids]`": "ids_to_tokens convert_ids_to_tokens",
    "`[tokenizer.token_to_id(token) for token in tokens]`": "tokens_to_ids convert_tokens_to_ids",
    "`detokenize(ids)`": "decode",
    "`detokenize(ids)`, also of a batch": "batch_decode",
    "`encode(text, return_offsets=True)`, also of a batch": "encode_plus",
    "`encode(texts, return_offsets=True)`": "batch_encode_plus",
    "`special_token_ids`": "all_special_ids",
    "`special_tokens`": "all_special_tokens",
    "`get_vocabulary()`, the tokens by id": "get_vocab vocab",
    "`sequence_length`": "model_max_length",
    "`save_to_preset(folder)`": "save_pretrained",
    "`from_preset(folder)`, or `from_preset('hf://user/name')`": "from_pretrained",
}
_NAMES = {name: ours for ours, names in _INSTEAD.items() for name in names.split()}


class FamiliarName:
    """Raises the error for a name of another library that is looked up on a class of ours.

    >>> import roformer_tf
    >>> roformer_tf.RoFormerMaskedLM.from_pretrained("junnyu/roformer_chinese_base")
    Traceback (most recent call last):
    AttributeError: `RoFormerMaskedLM` has no `from_pretrained`. Use `from_preset(folder)`, ...
    """

    def __set_name__(self, owner, name):
        self.name = name

    def __get__(self, instance, owner):
        raise _error(owner, self.name)


def _error(cls, name):
    return AttributeError(f"`{cls.__name__}` has no `{name}`. Use {_NAMES[name]}.")


class TokenizerFromPreset(SavedWhole):
    """Mixin of tokenizers: adds `from_preset`, and errors for names of other libraries.

    >>> import roformer_tf
    >>> vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    >>> roformer_tf.RoFormerTokenizer(vocabulary, word_level=False).cls_token_id
    Traceback (most recent call last):
    AttributeError: `RoFormerTokenizer` has no `cls_token_id`. Use `start_token_id`.
    """

    from_pretrained = FamiliarName()

    def __init__(self, *args, name=None, **kwargs):
        super().__init__(*args, name=name or automatic_name(type(self)), **kwargs)

    @classmethod
    def from_preset(cls, preset, **kwargs) -> Self:
        """Builds the tokenizer from the folder of a model.

        Args:
            preset: str or path. A folder written by `save_to_preset`; for `RoFormerTokenizer` also
                an original or Hugging Face folder with a vocabulary; a `.zip` file of one; or
                `"hf://user/name"`.
            **kwargs: Arguments of the class. In a checkpoint `word_level` defaults to whether the
                vocabulary has Chinese words.

        Returns:
            An instance of the class.

        Raises:
            FileNotFoundError: If there is no such folder, or it has no vocabulary.
            ValueError: If the folder holds another kind of tokenizer. The message names its class.
        """
        if is_kerashub_source(preset):  # KerasHub downloads it
            return super().from_preset(str(preset), **kwargs)
        with checked_folder(preset, weights=False) as folder:
            folder.check_tokenizer_class(cls)
            if folder.layout == "preset":
                if not folder.config_file.exists():  # KerasHub loads nothing without a backbone's
                    return KerasPresetLoader(str(folder.path), {}).load_tokenizer(cls, **kwargs)
                return super().from_preset(str(folder.path), **kwargs)
            return cls(**folder.tokenizer_arguments(**kwargs))

    def __getattr__(self, name):
        if name in _NAMES:
            raise _error(type(self), name)
        # the PyTorch backend has one; Python's own raises the usual error
        return getattr(super(), "__getattr__", super().__getattribute__)(name)
