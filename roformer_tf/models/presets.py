import inspect
import json
from pathlib import Path

import keras

KEPT_BY_KERAS = ("name", "trainable", "compile")


class FromOriginalPreset:
    """Mixin: `from_preset` takes original folders too, and hands every argument to the part that knows it."""

    saved_masking = None  # what a task needs of the backbone of another task's preset

    @classmethod
    def from_preset(cls, preset, load_weights=True, **kwargs):
        """Builds the model from a folder.

        Args:
            preset: an original folder (`bert_config.json`, `bert_model.ckpt.*`, `vocab.txt`), or one that
                `save_to_preset` wrote.
            load_weights: `False` leaves the weights random.
            **kwargs: override what is saved: arguments of the class (`num_classes`, …), of its backbone (`dtype`,
                `dropout`, `masking`, …) and of its preprocessor (`sequence_length`, …). For original folders see
                `roformer_tf.checkpoint.load_original`.

        Returns:
            An instance of the class.

        Raises:
            ValueError, FileNotFoundError, TypeError: if the folder does not hold what is needed, or there is no such
                argument; the message names it.
        """
        # The one import of a floor above: Keras puts this constructor on the class.
        from roformer_tf.checkpoint import is_original_folder, load_original

        if "://" not in str(preset) and not Path(str(preset)).is_dir():
            raise FileNotFoundError(
                "`preset` must be an original folder (bert_config.json) or one written by `save_to_preset` "
                f"(config.json). Received: preset={str(preset)!r}, which is no folder"
            )
        if is_original_folder(preset):
            return load_original(cls, preset, load_weights=load_weights, **kwargs)
        config = saved_config(preset)
        kwargs = {"dtype": mixed_policy(config), **kwargs}
        kwargs = {name: value for name, value in kwargs.items() if value is not None}
        if getattr(cls, "backbone_cls", None) is not None:
            kwargs = cls._with_parts(preset, load_weights, config, kwargs)
        return super().from_preset(str(preset), load_weights=load_weights, **kwargs)

    @classmethod
    def _with_parts(cls, preset, load_weights, config, kwargs):
        """Makes backbone and preprocessor where arguments are theirs; KerasHub knows only those of the task."""
        own = arguments_of(cls)
        of_backbone, of_preprocessor = (
            [name for name in arguments_of(part) if name not in own]
            for part in (cls.backbone_cls, cls.preprocessor_cls)
        )
        unknown = set(kwargs) - {*own, *of_backbone, *of_preprocessor, *KEPT_BY_KERAS}
        if unknown:
            raise TypeError(
                f"`{cls.__name__}.from_preset` has no such arguments: they must be of the class, its backbone or its "
                f"preprocessor. Received: {', '.join(sorted(unknown))}"
            )
        overrides = {name: kwargs[name] for name in of_backbone if name in kwargs}
        if cls.saved_masking and config.get("masking") == "bidirectional":
            overrides.setdefault("masking", cls.saved_masking)
        if set(overrides) - {"dtype"} and "backbone" not in kwargs:
            kept = {"dtype"} if _holds_task(preset, cls) else set()  # see `mixed_policy`
            kwargs = {k: value for k, value in kwargs.items() if k not in overrides or k in kept}
            kwargs["backbone"] = cls.backbone_cls.from_preset(
                preset, load_weights=load_weights, **overrides
            )
        options = {name: kwargs.pop(name) for name in of_preprocessor if name in kwargs}
        if options and "preprocessor" not in kwargs:
            kwargs["preprocessor"] = cls.preprocessor_cls.from_preset(str(preset), **options)
        return kwargs


def arguments_of(cls):
    """Names of the arguments that a class declares, without the open-ended `**kwargs`."""
    parameters = inspect.signature(cls.__init__).parameters.values()
    return [p.name for p in parameters if p.name != "self" and p.kind is not p.VAR_KEYWORD]


def saved_config(preset):
    """The backbone's arguments in a folder that `save_to_preset` wrote; empty for anything else."""
    file = Path(str(preset)) / "config.json"
    if not file.is_file():
        return {}
    return json.loads(file.read_text(encoding="utf-8")).get("config", {})


def _holds_task(preset, cls):
    """Whether the folder holds a whole task of this class, which KerasHub then makes from its config."""
    file = Path(str(preset)) / "task.json"
    if not file.is_file():
        return False
    saved = json.loads(file.read_text(encoding="utf-8")).get("registered_name")
    saved = keras.saving.get_registered_object(saved)
    return isinstance(saved, type) and issubclass(saved, cls)


def mixed_policy(config):
    """Name of the mixed dtype policy a preset was saved with, or `None`.

    KerasHub 0.32 takes the name of a saved policy for a dtype, and "mixed_bfloat16" is none: it must be told.
    """
    name = ((config.get("dtype") or {}).get("config") or {}).get("name") or ""
    return name if name.startswith("mixed_") else None
