import json
import os


class FromOriginalPreset:
    """Mixin: `from_preset` takes original folders too."""

    @classmethod
    def from_preset(cls, preset, load_weights=True, **kwargs):
        """Builds the model from a folder.

        Args:
            preset: an original folder (`bert_config.json`, `bert_model.ckpt.*`, `vocab.txt`), or one that
                `save_to_preset` wrote.
            load_weights: `False` leaves the weights random.
            **kwargs: override the configuration (`dtype`, `dropout`, `sequence_length`, …). For original folders see
                `roformer_tf.checkpoint.load_original`.

        Returns:
            An instance of the class.

        Raises:
            ValueError, FileNotFoundError: if the folder does not hold what is needed; the message names it.
        """
        # The one import of a floor above: Keras puts this constructor on the class.
        from roformer_tf.checkpoint import is_original_folder, load_original

        if is_original_folder(preset):
            return load_original(cls, preset, load_weights=load_weights, **kwargs)
        kwargs.setdefault("dtype", saved_mixed_policy(preset))
        kwargs = {name: value for name, value in kwargs.items() if value is not None}
        return super().from_preset(os.fspath(preset), load_weights=load_weights, **kwargs)


def saved_mixed_policy(preset):
    """Name of the mixed dtype policy a preset was saved with, or `None`.

    KerasHub 0.32 takes the name of a saved policy for a dtype, and "mixed_bfloat16" is none: it must be told.
    """
    file = os.path.join(str(preset), "config.json")
    if not os.path.exists(file):
        return None
    with open(file, encoding="utf-8") as stream:
        policy = json.load(stream).get("config", {}).get("dtype") or {}
    name = policy.get("config", {}).get("name") or ""
    return name if name.startswith("mixed_") else None
