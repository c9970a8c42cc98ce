"""Feature maps of linear attention by name, and the maps of a model's blocks."""

from roformer_tf.checks import check_one_of
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


def make_feature_maps(name, num_layers, options=None, dtype=None):
    """Makes the feature map of each block of a model.

    Args:
        name: a key of `FEATURE_MAPS`, or `"softmax"` for none.
        num_layers: Positive int.
        options: dict. Arguments of the map's class. Block i gets `seed + i`.
        dtype: dtype policy.

    Returns:
        List of `num_layers` maps, or of `None`.

    Raises:
        ValueError: If the feature map or one of its options is unknown.
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
                "`attention_options` are arguments of a feature map, and `attention='softmax'` has "
                f"none. Received: attention_options={options!r}"
            )
        return [None] * num_layers
    check_one_of("attention", name, ("softmax", *FEATURE_MAPS))
    cls, maps = FEATURE_MAPS[name], []
    for i in range(num_layers):
        if i and hasattr(maps[0], "seed"):
            options["seed"] = maps[0].seed + i
        maps.append(cls(**options, dtype=dtype, name="feature_map"))
    return maps
