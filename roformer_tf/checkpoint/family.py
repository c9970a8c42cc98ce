"""Which family and application a checkpoint belongs to, guessed from names, settings and variables."""

import re
from dataclasses import dataclass

from roformer_tf.checkpoint.mapping import FAMILIES

APPLICATIONS = ("encoder", "lm", "unilm")

# Slots that optimizers of TF1, Google's BERT and NEZHA leave beside a variable, and counters of the training loop.
_SLOT = re.compile(
    r"/(adam_[mv]|Adam(_\d+)?|AdamW\w*|AdamWeightDecay\w*|LAMB\w*|lamb_[mv]|Momentum|m|v|ExponentialMovingAverage)$"
)
_COUNTER = re.compile(
    r"^(training/)?(global_step|beta[12]_power(_\d+)?|(loss|current)_scale\w*|(good|bad)_steps\w*|learning_rate|iterations)$"
)


@dataclass(frozen=True)
class Guess:
    """What a checkpoint seems to be, and why.

    Attributes:
        family: key of `mapping.FAMILIES`, or `None` if it looks like none of them.
        application: `"encoder"`, `"lm"` (left to right) or `"unilm"` (segment 0 is a prefix), as in bert4keras.
        pooler: `None`, `"tanh"` or `"linear"`.
        reasons: tuple of sentences.
    """

    family: str | None
    application: str
    pooler: str | None
    reasons: tuple


def is_optimizer_slot(name):
    """Whether a variable is a leftover of training and not a weight.

    Example:

    >>> from roformer_tf.checkpoint.family import is_optimizer_slot
    >>> is_optimizer_slot("bert/pooler/dense/kernel/adam_m"), is_optimizer_slot("bert/pooler/dense/kernel")
    (True, False)
    """
    return bool(_SLOT.search(name) or _COUNTER.match(name))


def guess_family(names, config=None, folder_name="", family=None):
    """Guesses family, application and pooler.

    Args:
        names: names of the variables.
        config: dict of `bert_config.json`, or `None`.
        folder_name: name of the folder: the only thing that tells some releases apart.
        family: overrides the guess of the family.

    Returns:
        `Guess`.

    Raises:
        ValueError: if `family` is unknown.
    """
    check_family(family)
    names, config = set(names), config or {}
    words = set(re.split(r"[^a-z0-9]+", folder_name.lower()))
    reasons = []
    if family is None:
        family, why = _family(names, config, words)
        reasons.append(why)
    else:
        reasons.append(f"family {family!r}: you said so")
    application, pooler, why = _application(names, words, family)
    return Guess(family, application, pooler, (*reasons, *why))


def check_family(family):
    """Raises `ValueError` unless `family` is `None` or known."""
    if family is not None and family not in FAMILIES:
        raise ValueError(
            f"`family` must be one of {list(FAMILIES)} or None. Received: family={family!r}"
        )


def _family(names, config, words):
    if "bert/embeddings/word_embeddings" not in names:
        prefixes = sorted({name.split("/")[0] for name in names if not is_optimizer_slot(name)})
        return None, (
            "family unknown: there is no variable bert/embeddings/word_embeddings (ALBERT, ELECTRA, GPT-2 and T5 are "
            f"not supported); names begin with {', '.join(prefixes[:5]) or 'nothing'}"
        )
    if "bert/embeddings/position_embeddings" in names:
        return "bert", "family 'bert': there is a variable bert/embeddings/position_embeddings"
    encoder = [name for name in names if name.startswith("bert/encoder/layer_")]
    if encoder and not any(re.search(r"/(bias|beta|gamma)$", name) for name in encoder):
        return "roformer_v2", "family 'roformer_v2': the encoder has no bias, beta or gamma"
    if config.get("use_relative_position") or str(config.get("model_type", "")).lower() == "nezha":
        return "nezha", "family 'nezha': bert_config.json asks for relative positions"
    if "nezha" in words:
        return "nezha", (
            "family 'nezha': the folder is called so (NEZHA and RoFormer v1 have the same variables)"
        )
    return "roformer", (
        "family 'roformer': biases and norm weights, no position embeddings, and nothing that says NEZHA "
        "(which has the same variables)"
    )


def _application(names, words, family):
    has_pooler = any(name.startswith("bert/pooler/dense/") for name in names)
    has_nsp = any(name.startswith("cls/seq_relationship/") for name in names)
    if "gpt" in words:
        return "lm", "tanh" if has_pooler else None, ["application 'lm': the folder is called GPT"]
    if has_pooler and "sim" in words:
        return (
            "unilm",
            "linear",
            ["application 'unilm', linear pooler: the folder is called sim and has a pooler"],
        )
    if has_pooler and not has_nsp and family in ("roformer", "roformer_v2"):
        return (
            "unilm",
            "linear",
            [
                "application 'unilm', linear pooler: of the RoFormer releases only RoFormer-Sim has a pooler and no "
                "next-sentence head"
            ],
        )
    if has_pooler:
        why = (
            "pooler with tanh: there is a next-sentence head"
            if has_nsp
            else "pooler with tanh, as in BERT"
        )
        return "encoder", "tanh", ["application 'encoder': nothing says otherwise", why]
    return "encoder", None, ["application 'encoder': nothing says otherwise"]
