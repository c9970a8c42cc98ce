"""What the configs and shapes of the layers have in common."""

import inspect

import keras


def serialized(value):
    """Returns the config of the value of an argument, which may be a layer that others share.

    Keras marks configs of a shared layer only from the second time it meets the layer. So it meets
    it here first, or the first config in a file would be that of a layer of its own.
    """
    if isinstance(value, keras.layers.Layer):
        keras.saving.serialize_keras_object(value)
    return keras.saving.serialize_keras_object(value)


def own_arguments(thing, base, parts=()):
    """Returns the arguments of the classes of `thing` below `base` as a config, without `parts`.

    The value of an argument is the attribute of the same name. If there is none, it is the one that
    Keras noted when `thing` was made, which Keras does if all arguments are numbers and strings.
    Arguments of a class with its own `get_config` are left out, as that method adds them.
    """
    classes = type(thing).__mro__[: type(thing).__mro__.index(base)]
    classes = [c for c in classes if "__init__" in vars(c) and "get_config" not in vars(c)]
    names = [name for c in classes for name in inspect.signature(c.__init__).parameters]
    noted = getattr(getattr(thing, "_auto_config", None), "config", {})
    return {
        name: serialized(getattr(thing, name, noted.get(name)))
        for name in names
        if name not in parts and (hasattr(thing, name) or name in noted)
    }


def arguments_of(layer, cls, **values):
    """Returns the arguments of `cls.__init__` as a config, read from attributes of the same name.

    Args:
        layer: A layer that is a `cls`.
        cls: The class that calls this in its `get_config`.
        **values: Config values of arguments that are stored in another way.

    Returns:
        Dict, without `name` and `**kwargs`, which the base class adds.
    """
    # of `__init__`, since Python 3.11.2 takes the signature of a layer's class from `__new__`
    parameters = inspect.signature(cls.__init__).parameters
    names = [name for name in parameters if name not in ("self", "name", "kwargs")]
    return {
        name: values[name] if name in values else serialized(getattr(layer, name)) for name in names
    }


def deserialize_parts(config):
    """Returns the config with the layers in it deserialized."""
    parts = {
        name: keras.saving.deserialize_keras_object(config[name])
        for name in ("position_scheme", "feature_map", "token_embedding")
        if name in config
    }
    return {**config, **parts}


def shape_of_spec(layer, *shapes, **named_shapes):
    """Returns the shape of a layer's output, as its `compute_output_shape`, which wrappers ask for.

    Args:
        layer: Layer with a `compute_output_spec`.
        *shapes, **named_shapes: Shapes of its inputs. Only the first one is read.
    """
    x_shape = (*shapes, *named_shapes.values())[0]
    return layer.compute_output_spec(keras.KerasTensor(x_shape, layer.compute_dtype)).shape
