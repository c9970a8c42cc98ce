"""Length scaling of rotary positions, for texts longer than a model was trained on.

A rule slows frequencies down: it multiplies theta_i by a *ratio* of at most 1 (`ratios`), and the
rotated queries and keys by `query_key_factor`. It does not depend on the frequencies, so it works
for learned ones too.

A model selects a rule by a dictionary like Hugging Face's `rope_scaling`; see
`make_rope_scaling`. The *share* of pair i, 2i / (rotary_dim - 2), runs from 0 at the fastest pair
to 1 at the slowest.
"""

import dataclasses
import math

import numpy as np
from keras import ops

from roformer_tf.checks import is_number


@dataclasses.dataclass(frozen=True)
class RopeScaling:
    """The rule "default", which changes nothing, and the base class of the others.

    Attributes:
        query_key_factor: float. Factor on rotated queries and keys.
        needs_length: bool. Whether the ratios depend on the current length of a sequence.

    Raises:
        ValueError: If a field of the rule has a value that makes no sense.

    Example:

    >>> from roformer_tf.rope_scaling import RopeScaling
    >>> RopeScaling().ratios(rotary_dim=4, base=10000.0).tolist()
    [1.0, 1.0]
    """

    query_key_factor = 1.0
    needs_length = False

    def __post_init__(self):
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            is_right, expected = _KINDS[field.name]
            if not (is_right(value) or (value is None and field.default is None)):
                raise ValueError(
                    f"`rope_scaling[{field.name!r}]` must be {expected}. Received: {value!r}"
                )

    def ratios(self, rotary_dim, base, length=None):
        """Returns the factors of the frequencies.

        Args:
            rotary_dim: even int. Number of features that are rotated.
            base: float. Of the frequencies theta_i = base^(-2i / rotary_dim).
            length: Number or tensor `(...)`, current lengths, for a rule that `needs_length`.
                `None` is any length up to the trained one.

        Returns:
            NumPy float64 array `(rotary_dim // 2,)`; a float32 tensor `(..., rotary_dim // 2)`
            where it depends on `length`.
        """
        return np.ones(rotary_dim // 2)


@dataclasses.dataclass(frozen=True)
class LinearScaling(RopeScaling):
    """Position interpolation: divides all frequencies by `factor`.

    Example:

    >>> from roformer_tf.rope_scaling import LinearScaling
    >>> LinearScaling(factor=4.0).ratios(rotary_dim=4, base=10000.0).tolist()
    [0.25, 0.25]

    Reference: Chen et al., Extending context window of large language models via positional
    interpolation, arXiv 2306.15595.
    """

    factor: float

    def ratios(self, rotary_dim, base, length=None):
        return np.full(rotary_dim // 2, 1 / self.factor)


@dataclasses.dataclass(frozen=True)
class NTKScaling(RopeScaling):
    """NTK-aware scaling: keeps the fastest frequency and divides the slowest by `factor`.

    The others follow geometrically. It equals a base of base * factor^(d / (d - 2)).

    Example:

    >>> from roformer_tf.rope_scaling import NTKScaling
    >>> NTKScaling(factor=4.0).ratios(rotary_dim=6, base=10000.0).tolist()
    [1.0, 0.5, 0.25]

    Reference: section 3.1 of YaRN, arXiv 2309.00071.
    """

    factor: float

    def ratios(self, rotary_dim, base, length=None):
        return self.factor ** -_shares(rotary_dim)


@dataclasses.dataclass(frozen=True)
class DynamicNTKScaling(RopeScaling):
    """NTK-aware scaling with a factor that grows with the length L of the sequence.

    The factor is factor * L / trained - (factor - 1). Up to the trained length,
    `original_max_position_embeddings`, nothing changes.

    Example:

    >>> from roformer_tf.rope_scaling import DynamicNTKScaling
    >>> rule = DynamicNTKScaling(factor=1.0, original_max_position_embeddings=512)
    >>> [[round(float(x), 3) for x in rule.ratios(6, 10000.0, length)] for length in (512, 2048)]
    [[1.0, 1.0, 1.0], [1.0, 0.5, 0.25]]

    Reference: section 3.3 of YaRN, arXiv 2309.00071; `_compute_dynamic_ntk_parameters` of Hugging
    Face transformers.
    """

    factor: float
    original_max_position_embeddings: int

    needs_length = True

    def ratios(self, rotary_dim, base, length=None):
        if length is None:
            return super().ratios(rotary_dim, base)
        length = ops.cast(length, "float32")
        stretch = self.factor * (length / self.original_max_position_embeddings - 1) + 1
        stretch = ops.expand_dims(ops.maximum(stretch, 1.0), -1)
        return ops.power(stretch, ops.cast(-_shares(rotary_dim), "float32"))


@dataclasses.dataclass(frozen=True)
class YaRNScaling(RopeScaling):
    """YaRN: keeps fast frequencies, divides slow ones by `factor`, and sharpens the scores.

    Pairs that make more than `beta_fast` turns within the trained length stay. Those that make
    fewer than `beta_slow` turns are interpolated. Between them is a ramp, linear in i as in the
    authors' code. Queries and keys are multiplied by `attention_factor`, by default
    0.1 ln(factor) + 1, so the softmax has the temperature 1 / attention_factor^2.

    Args:
        factor: Number of at least 1.
        original_max_position_embeddings: int. The trained length.
        attention_factor: positive number, or `None` for the default.
        beta_fast, beta_slow: positive numbers of turns.
        mscale, mscale_all_dim: positive numbers; where both are given, `attention_factor` is by
            default (0.1 mscale ln(factor) + 1) / (0.1 mscale_all_dim ln(factor) + 1).
        truncate: bool. Whether the ramp begins and ends at whole pairs.

    Example:

    >>> from roformer_tf.rope_scaling import YaRNScaling
    >>> rule = YaRNScaling(factor=4.0, original_max_position_embeddings=512)
    >>> rule.ratios(rotary_dim=8, base=10000.0).tolist(), round(rule.query_key_factor, 4)
    ([1.0, 0.625, 0.25, 0.25], 1.1386)

    Reference: sections 3.2 and 3.4 of arXiv 2309.00071; `_compute_yarn_parameters` of Hugging Face
    transformers.
    """

    factor: float
    original_max_position_embeddings: int
    attention_factor: float | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True

    def __post_init__(self):
        super().__post_init__()
        if self.beta_fast < self.beta_slow:
            raise ValueError(
                "`rope_scaling['beta_fast']` must not be below `rope_scaling['beta_slow']`. "
                f"Received: beta_fast={self.beta_fast}, beta_slow={self.beta_slow}"
            )

    @property
    def query_key_factor(self):
        """Factor of rotated queries and keys."""
        if self.attention_factor is not None:
            return self.attention_factor
        scale = 0.1 * math.log(self.factor)
        if self.mscale is not None and self.mscale_all_dim is not None:
            return (scale * self.mscale + 1) / (scale * self.mscale_all_dim + 1)
        return scale + 1

    def ratios(self, rotary_dim, base, length=None):
        if not base > 1:
            raise ValueError(
                "YaRN needs frequencies that differ: a base (`max_wavelength`) above 1. "
                f"Received: base={base}"
            )

        # i, as a fraction, whose theta_i makes so many turns within the trained length
        def pair_of(turns):
            distance = self.original_max_position_embeddings / (2 * math.pi * turns)
            return rotary_dim * math.log(distance) / (2 * math.log(base))

        first, last = pair_of(self.beta_fast), pair_of(self.beta_slow)
        if self.truncate:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, rotary_dim - 1)
        if first == last:
            last += 0.001
        ramp = np.clip((np.arange(rotary_dim // 2) - first) / (last - first), 0, 1)
        return 1 - ramp + ramp / self.factor


@dataclasses.dataclass(frozen=True)
class Llama3Scaling(RopeScaling):
    """LLaMA 3.1: keeps fast frequencies and divides slow ones by `factor`, with a ramp between.

    Pairs that turn more than `high_freq_factor` times within the trained length stay, and those
    that turn less than `low_freq_factor` times are slowed down. The ramp is linear in the number of
    turns.

    Args:
        factor: float of at least 1.
        original_max_position_embeddings: int. The trained length.
        low_freq_factor: float. Number of turns.
        high_freq_factor: float. Number of turns, more than `low_freq_factor`.

    Example:

    >>> from roformer_tf.rope_scaling import Llama3Scaling
    >>> rule = Llama3Scaling(8.0, 8192, low_freq_factor=1.0, high_freq_factor=4.0)
    >>> rule.ratios(rotary_dim=8, base=500_000.0).round(3).tolist()
    [1.0, 1.0, 0.371, 0.125]

    Reference: `_compute_llama3_parameters` of Hugging Face transformers.
    """

    factor: float
    original_max_position_embeddings: int
    low_freq_factor: float
    high_freq_factor: float

    def __post_init__(self):
        super().__post_init__()
        if self.low_freq_factor >= self.high_freq_factor:
            raise ValueError(
                "`rope_scaling['low_freq_factor']` must be below "
                "`rope_scaling['high_freq_factor']`. Received: "
                f"low_freq_factor={self.low_freq_factor}, high_freq_factor={self.high_freq_factor}"
            )

    def ratios(self, rotary_dim, base, length=None):
        theta = float(base) ** (-np.arange(0, rotary_dim, 2) / rotary_dim)
        turns = self.original_max_position_embeddings * theta / (2 * math.pi)
        fast = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        fast = np.clip(fast, 0, 1)
        return fast + (1 - fast) / self.factor


@dataclasses.dataclass(frozen=True)
class LongRoPEScaling(RopeScaling):
    """LongRoPE: divides each frequency by its own factor, which a search has found.

    Args:
        short_factor: list of `rotary_dim / 2` floats, for sequences up to the trained length.
        long_factor: list of `rotary_dim / 2` floats, for longer sequences.
        original_max_position_embeddings: int. The trained length.
        factor: float of at least 1, the ratio of the longest and the trained length. Needed unless
            `attention_factor` is given.
        attention_factor: positive float. Factor of rotated queries and keys. Defaults to
            `sqrt(1 + ln(factor) / ln(original_max_position_embeddings))`.

    Example:

    >>> from roformer_tf.rope_scaling import LongRoPEScaling
    >>> rule = LongRoPEScaling([1.0, 1.0], [1.0, 4.0], 4096, factor=32.0)
    >>> [[float(x) for x in rule.ratios(4, 10000.0, length)] for length in (100, 5000)]
    [[1.0, 1.0], [1.0, 0.25]]

    Reference: arXiv 2402.13753; `_compute_longrope_parameters` of Hugging Face transformers.
    """

    short_factor: list
    long_factor: list
    original_max_position_embeddings: int
    factor: float | None = None
    attention_factor: float | None = None

    needs_length = True

    def __post_init__(self):
        super().__post_init__()
        if self.factor is None and self.attention_factor is None:
            raise ValueError(
                "`rope_scaling` of type 'longrope' needs `factor`, the ratio of the longest and "
                "the trained length, or `attention_factor`. Received: none of them"
            )
        if self.original_max_position_embeddings == 1 and self.attention_factor is None:
            raise ValueError(  # its logarithm is a divisor
                "`rope_scaling` of type 'longrope' needs `attention_factor` if the trained length "
                "is 1. Received: original_max_position_embeddings=1"
            )

    @property
    def query_key_factor(self):
        """Factor of rotated queries and keys."""
        if self.attention_factor is not None:
            return self.attention_factor
        return math.sqrt(
            1 + math.log(self.factor) / math.log(self.original_max_position_embeddings)
        )

    def ratios(self, rotary_dim, base, length=None):
        for name in ("short_factor", "long_factor"):
            if len(getattr(self, name)) != rotary_dim // 2:
                raise ValueError(
                    f"`rope_scaling[{name!r}]` must have a number for each of the "
                    f"{rotary_dim // 2} pairs of features. "
                    f"Received: {len(getattr(self, name))} numbers"
                )
        short, long = (1 / np.asarray(x, "float64") for x in (self.short_factor, self.long_factor))
        if length is None:
            return short
        length = ops.expand_dims(ops.cast(length, "float32"), -1)
        is_long = length > self.original_max_position_embeddings
        return ops.where(is_long, ops.cast(long, "float32"), ops.cast(short, "float32"))


# "ntk" is our name: Hugging Face has only the dynamic form
RULES = {
    "default": RopeScaling,
    "linear": LinearScaling,
    "ntk": NTKScaling,
    "dynamic": DynamicNTKScaling,
    "yarn": YaRNScaling,
    "llama3": Llama3Scaling,
    "longrope": LongRoPEScaling,
}


def make_rope_scaling(config):
    """Creates the rule of a dictionary.

    Args:
        config: `None`, or a dictionary of `"rope_type"` (or `"type"`), a key of `RULES`, and the
            fields of that rule; those that are `None` count as left out.

    Returns:
        A `RopeScaling`.

    Raises:
        ValueError: If the rule or a key is unknown, a key is missing, or a value is invalid.

    Example:

    >>> from roformer_tf.rope_scaling import make_rope_scaling
    >>> make_rope_scaling({"rope_type": "linear", "factor": 4.0})
    LinearScaling(factor=4.0)
    >>> make_rope_scaling({"rope_type": "dynamic", "factor": 4.0})
    Traceback (most recent call last):
    ValueError: `rope_scaling` of type 'dynamic' needs `original_max_position_embeddings`, ...

    Reference: `RopeParameters` of Hugging Face transformers' `modeling_rope_utils.py`.
    """
    if config is None:
        return RopeScaling()
    if not isinstance(config, dict):
        raise ValueError(
            "`rope_scaling` must be None or a dictionary such as "
            f"{{'rope_type': 'linear', 'factor': 4.0}}. Received: rope_scaling={config!r}"
        )
    options = {key: value for key, value in config.items() if value is not None}
    older_name = options.pop("type", None)
    name = options.pop("rope_type", older_name)
    if name not in tuple(RULES):
        raise ValueError(
            f"`rope_scaling['rope_type']` must be one of {tuple(RULES)}. "
            f"Received: rope_scaling={config!r}"
        )
    fields = dataclasses.fields(RULES[name])
    unknown = sorted(set(options) - {field.name for field in fields})
    if unknown:
        raise ValueError(
            f"`rope_scaling` of type {name!r} takes {[field.name for field in fields]}, and not "
            f"{unknown}; the base of the frequencies is `max_wavelength`, the number of rotated "
            "features `rotary_dim`. "
            f"Received: rope_scaling={config!r}"
        )
    for field in fields:
        if field.default is dataclasses.MISSING and field.name not in options:
            raise ValueError(
                f"`rope_scaling` of type {name!r} needs `{field.name}`, {_KINDS[field.name][1]}. "
                f"Received: rope_scaling={config!r}"
            )
    return RULES[name](**options)


def _shares(rotary_dim):
    pairs = rotary_dim // 2
    return np.arange(pairs) / max(pairs - 1, 1)


def _are_positive(value):
    return isinstance(value, list | tuple) and all(is_number(x) and x > 0 for x in value)


_POSITIVE = (lambda value: is_number(value) and value > 0, "a positive number")
# field -> (whether a value is right, what is expected)
_KINDS = {
    "factor": (lambda value: is_number(value) and value >= 1, "a number of at least 1"),
    "original_max_position_embeddings": (
        lambda value: is_number(value) and value > 0 and value == int(value),
        "a positive integer, the length that the model was trained at",
    ),
    "attention_factor": _POSITIVE,
    "low_freq_factor": _POSITIVE,
    "high_freq_factor": _POSITIVE,
    "short_factor": (_are_positive, "a list of positive numbers"),
    "long_factor": (_are_positive, "a list of positive numbers"),
    "beta_fast": _POSITIVE,
    "beta_slow": _POSITIVE,
    "mscale": _POSITIVE,
    "mscale_all_dim": _POSITIVE,
    "truncate": (lambda value: isinstance(value, bool), "True or False"),
}
