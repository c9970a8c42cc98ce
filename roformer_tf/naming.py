"""Default names of models and layers."""

import re

import keras


def automatic_name(cls):
    """Returns the default name of a new object: `roformer_backbone`, then `roformer_backbone_1`.

    Keras' own rule would give a `RoFormerBackbone` the name `ro_former_backbone`.

    >>> from roformer_tf import RoFormerSeq2SeqLM
    >>> automatic_name(RoFormerSeq2SeqLM).startswith("roformer_seq_2_seq_lm")
    True
    """
    name = cls.__name__.replace("RoFormer", "Roformer")
    name = re.sub(r"(?<=[a-z])(?=[A-Z0-9])|(?<=[A-Z0-9])(?=[A-Z][a-z])", "_", name).lower()
    count = keras.backend.get_uid(name)
    return name if count == 1 else f"{name}_{count - 1}"
