"""The feature maps of linear attention by the names that models know them by."""

import inspect
import random

from roformer_tf.layers.cosine_feature_map import CosineFeatureMap
from roformer_tf.layers.elu_feature_map import EluFeatureMap
from roformer_tf.layers.favor_feature_map import FavorFeatureMap
from roformer_tf.layers.softmax_feature_map import SoftmaxFeatureMap

FEATURE_MAPS = {
    "elu": EluFeatureMap,
    "softmax_features": SoftmaxFeatureMap,
    "favor": FavorFeatureMap,
    "cosine": CosineFeatureMap,
}


def with_seed(name, options):
    """The options with a `seed`, drawn now if none is given, where the map draws its features.

    A model keeps them in its config, so that one that is loaded redraws what the saved one would have redrawn.
    """
    draws = name in FEATURE_MAPS and "seed" in inspect.signature(FEATURE_MAPS[name]).parameters
    if not draws or (options or {}).get("seed") is not None:
        return options
    return {**(options or {}), "seed": random.randint(1, 10**9)}


def make_feature_maps(name, num_layers, options=None, dtype=None):
    """The feature map of each block of a model.

    Args:
        name: a key of `FEATURE_MAPS`, or `"softmax"` for none.
        num_layers: positive integer.
        options: dictionary, arguments of the map's class, of `with_seed`. With a `seed`, block i has `seed + i`.
        dtype: dtype policy.

    Returns:
        List of `num_layers` maps, or of `None`.

    Raises:
        ValueError: if there is no such map, or it takes no such options.
    """
    if not isinstance(options or {}, dict):
        raise ValueError(
            "`attention_options` must be a dictionary of arguments of the feature map. "
            f"Received: attention_options={options!r}"
        )
    options = dict(options or {})
    if name == "softmax":
        if options:
            raise ValueError(
                "`attention_options` are arguments of a feature map, and `attention='softmax'` has none. "
                f"Received: attention_options={options!r}"
            )
        return [None] * num_layers
    if not isinstance(name, str) or name not in FEATURE_MAPS:
        raise ValueError(
            f"`attention` must be one of {('softmax', *FEATURE_MAPS)}. Received: attention={name!r}"
        )
    cls = FEATURE_MAPS[name]

    def make(i):
        own = {**options, "seed": options["seed"] + i} if "seed" in options else options
        return cls(**own, dtype=dtype, name="feature_map")

    return [make(i) for i in range(num_layers)]
