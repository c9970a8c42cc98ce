"""What the configs of the layers have in common."""

import inspect

import keras


def arguments_of(layer, cls, **values):
    """Returns the arguments of `cls.__init__` as a config, read from attributes of the same name.

    Args:
        layer: A layer that is a `cls`.
        cls: The class that calls this in its `get_config`.
        **values: Config values of arguments that are stored in another way.

    Returns:
        Dict, without `name` and `**kwargs`, which the base class adds.
    """
    names = [n for n in inspect.signature(cls).parameters if n not in ("name", "kwargs")]
    return {
        name: values[name]
        if name in values
        else keras.saving.serialize_keras_object(getattr(layer, name))
        for name in names
    }


def deserialize_parts(config):
    """Returns the config with the layers in it deserialized."""
    parts = {
        name: keras.saving.deserialize_keras_object(config[name])
        for name in ("position_scheme", "feature_map", "token_embedding")
        if name in config
    }
    return {**config, **parts}
