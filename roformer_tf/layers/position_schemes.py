"""Position schemes by name, and the schemes of a model's blocks."""

import inspect

from roformer_tf.checks import check_one_of
from roformer_tf.layers.deberta_position import DebertaPosition
from roformer_tf.layers.learned_position import LearnedPosition
from roformer_tf.layers.position_scheme import PositionScheme
from roformer_tf.layers.relative_position import RelativePosition
from roformer_tf.layers.rotary_position import RotaryPosition
from roformer_tf.layers.sinusoidal_position import SinusoidalPosition
from roformer_tf.layers.sinusoidal_relative_position import SinusoidalRelativePosition
from roformer_tf.layers.t5_relative_bias import T5RelativeBias
from roformer_tf.layers.transformer_xl_position import TransformerXLPosition
from roformer_tf.layers.tupe_position import TupePosition

# in the order of the equations of arXiv 2104.09864; docs/position_schemes.md compares them
POSITION_SCHEMES = {
    "none": PositionScheme,
    "learned": LearnedPosition,
    "sinusoidal": SinusoidalPosition,
    "relative": RelativePosition,
    "sinusoidal_relative": SinusoidalRelativePosition,
    "transformer_xl": TransformerXLPosition,
    "t5": T5RelativeBias,
    "tupe": TupePosition,
    "deberta": DebertaPosition,
    "rotary": RotaryPosition,
}


def make_position_schemes(name, num_layers, sizes, options=None, dtype=None, prefix=""):
    """Creates the position scheme of each block of a model.

    Args:
        name: a key of `POSITION_SCHEMES`.
        num_layers: Positive int.
        sizes: See `PositionScheme.for_model`.
        options: dict. Further arguments of the scheme's class.
        dtype: dtype policy.
        prefix: str. Put before the layer names if a model has several lists of schemes.

    Returns:
        List of `num_layers` schemes: the same one for all blocks, unless the scheme is `per_layer`.

    Raises:
        ValueError: If the scheme or one of its options is unknown.
    """
    check_one_of("position_scheme", name, tuple(POSITION_SCHEMES))
    cls = POSITION_SCHEMES[name]

    options = options or {}
    if not isinstance(options, dict):
        raise ValueError(
            f"`position_options` must be a dictionary of arguments of `{cls.__name__}`. "
            f"Received: position_options={options!r}"
        )
    known = [name for name in inspect.signature(cls).parameters if name != "kwargs"]
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise ValueError(
            f"`position_options` must be arguments of `{cls.__name__}`: "
            f"{', '.join(known) or 'it has none'}. "
            f"Received: position_scheme={name!r}, position_options={options!r}"
        )

    def make(layer_name):
        try:
            return cls.for_model(sizes, **options, dtype=dtype, name=layer_name)
        except TypeError as error:
            if "multiple values" in str(error):
                wrong = "`position_options` must not set an argument that the model sets itself"
            else:
                wrong = "An argument of the model or of `position_options` has the wrong type"
            raise ValueError(
                f"{wrong}. Received: position_scheme={name!r}, "
                f"position_options={options!r} ({error})"
            ) from error

    if cls.per_layer:
        return [make(f"{prefix}position_scheme_{i}") for i in range(num_layers)]
    return [make(f"{prefix}position_scheme")] * num_layers
