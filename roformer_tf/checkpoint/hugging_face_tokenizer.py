"""Reads the files of a Hugging Face tokenizer: its vocabulary, and the settings that we have too."""

import os

from roformer_tf.checkpoint.damage import read_errors, read_json
from roformer_tf.checkpoint.original_files import VOCABULARY_FILE

HF_TOKENIZER_FILE = "tokenizer.json"
HF_TOKENIZER_CONFIG_FILE = "tokenizer_config.json"
# All that transformers writes. The last two hold tokens again, and are not read here.
HF_TOKENIZER_FILES = (
    VOCABULARY_FILE,
    HF_TOKENIZER_FILE,
    HF_TOKENIZER_CONFIG_FILE,
    "special_tokens_map.json",
    "added_tokens.json",
)
# Hugging Face's names of special tokens -> ours, and their defaults
_SPECIAL_TOKENS = {
    "pad_token": ("pad_token", "[PAD]"),
    "unk_token": ("unk_token", "[UNK]"),
    "cls_token": ("start_token", "[CLS]"),
    "sep_token": ("end_token", "[SEP]"),
    "mask_token": ("mask_token", "[MASK]"),
}


def read_tokenizer_json(file):
    """Reads `tokenizer.json`, which is all that transformers 5 writes of a vocabulary.

    Args:
        file: Path.

    Returns:
        Tuple of the tokens by id, those that were added to the vocabulary or are special, and
        whether text becomes lower case (`None` if unknown).

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is damaged, or holds another kind of tokenizer.
    """
    content = read_json(file, "it is the tokenizer.")
    with read_errors(file, (AttributeError, KeyError, TypeError)):
        model, normalizer = (content.get(name) or {} for name in ("model", "normalizer"))
        kind = model.get("type"), model.get("continuing_subword_prefix", "##")
        if kind != ("WordPiece", "##"):
            raise ValueError(
                f"{file} must hold a tokenizer of type WordPiece with the prefix ##, as those of "
                f"BERT and RoFormer. Received: type={kind[0]!r}, prefix={kind[1]!r}. Pass "
                "`vocabulary=[…]`, or `preprocessor=None` to load a task without its tokenizer."
            )
        added = {token["content"]: token["id"] for token in content.get("added_tokens") or ()}
        ids = model["vocab"] | added
        if sorted(ids.values()) != list(range(len(ids))):
            raise ValueError(
                f"{file} must number its tokens 0, 1, 2, … without a gap. Received: {len(ids)} "
                f"tokens with ids from {min(ids.values())} to {max(ids.values())}. Pass "
                "`vocabulary=[…]`, with a token for each row of the token embedding."
            )
        return sorted(ids, key=ids.get), list(added), normalizer.get("lowercase")


def tokenizer_settings(folder, tokens):
    """Returns the arguments of `RoFormerTokenizer` in the files of a Hugging Face folder.

    Args:
        folder: Path.
        tokens: The tokens of the vocabulary. A special token that is not one of them is left out.
    """
    settings, added, lowercase = {}, [], None
    if (folder / HF_TOKENIZER_CONFIG_FILE).is_file():
        settings = read_json(
            folder / HF_TOKENIZER_CONFIG_FILE, "it holds the settings of the tokenizer."
        )
    if vocabulary_file(folder).name == HF_TOKENIZER_FILE:
        _, added, lowercase = read_tokenizer_json(folder / HF_TOKENIZER_FILE)
    arguments, special = {}, set()
    lowercase = settings.get("do_lower_case", lowercase)
    if isinstance(lowercase, bool):
        arguments["lowercase"] = lowercase
    for theirs, (ours, default) in _SPECIAL_TOKENS.items():
        token = settings.get(theirs)
        token = token.get("content") if isinstance(token, dict) else token
        special.add(token or default)
        if token in tokens:
            arguments[ours] = token
    added = [token for token in added if token in tokens and token not in special]
    return arguments | ({"added_tokens": added} if added else {})


def vocabulary_file(folder):
    """Returns the file of a Hugging Face folder that holds, or would hold, the vocabulary."""
    name = VOCABULARY_FILE
    if not os.path.lexists(folder / name) and (folder / HF_TOKENIZER_FILE).is_file():
        name = HF_TOKENIZER_FILE
    return folder / name
