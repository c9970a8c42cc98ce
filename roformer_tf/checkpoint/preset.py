"""Reads the weights and checks the settings in a folder that `save_to_preset` wrote."""

import os
import re

import h5py

from roformer_tf.checkpoint.damage import files_of_index, open_h5


class PresetArrays:
    """The weights in the `.h5` files of a folder written by `save_to_preset`, by Keras' names."""

    def __init__(self, folder):
        self.source, self.shapes, self.dtypes, self._files = folder, {}, {}, {}
        index = folder / "model.weights.json"
        if os.path.lexists(index):
            files_of_index(index, ".h5")  # only for its errors, since all files are read
        for file in sorted(folder.glob("*.weights*.h5")):
            prefix = "" if file.name.startswith("model") else f"{file.name.split('.')[0]}/"
            with open_h5(file) as stored:
                keys = []
                stored.visit(keys.append)
                for key in keys:
                    if isinstance(stored[key], h5py.Dataset) and "seed_generator" not in key:
                        name = prefix + key
                        self.shapes[name], self.dtypes[name] = stored[key].shape, stored[key].dtype
                        self._files[name] = (file, key)

    def read(self, name):
        """Returns one array by its name."""
        file, key = self._files[name]
        with open_h5(file) as stored:
            return stored[key][()]


def check_part(config, file):
    """Returns the configuration of an object in a preset if it has the form that Keras writes."""
    wanted = {"class_name": str, "registered_name": str, "config": dict}
    if not isinstance(config, dict):
        config = {"class_name": config}
    wrong = [key for key, kind in wanted.items() if not isinstance(config.get(key), kind)]
    if wrong:
        raise ValueError(
            f"{file} must hold an object that Keras serialized, with `class_name`, "
            f"`registered_name` and `config`. Received: "
            f"{', '.join(f'{key}={config.get(key)!r:.50}' for key in wrong)}"
        )
    return config


def check_preset(folder, weights):
    """Raises an error if settings of a preset are damaged, or do not fit the weights beside them."""
    configs = {}
    if weights or os.path.lexists(folder.config_file):  # a tokenizer alone has none
        configs[folder.config_file] = folder.config["config"]
    parts = ("task.json", "preprocessor.json", "tokenizer.json")
    task, *_ = [folder.part(name) for name in parts]
    if not weights:
        return
    if task is not None and "backbone" in task["config"]:
        file = folder.path / "task.json"
        configs[file] = check_part(task["config"]["backbone"] or {}, file)["config"]
        if "preprocessor" not in task["config"]:
            raise ValueError(f"{file} must have `preprocessor`, or `null` for none, in `config`.")
        if task["config"]["preprocessor"] is not None:
            check_part(task["config"]["preprocessor"], file)
    for file, config in configs.items():
        _check_sizes(file, config, folder.arrays)


def _check_sizes(file, config, arrays):
    """Compares a backbone's settings with the weights before a model of these sizes is built."""
    if not arrays.shapes:
        return
    axes = {size for shape in arrays.shapes.values() for size in shape}
    if any(dtype.kind in "iu" for dtype in arrays.dtypes.values()):
        # a byte may hold two int4
        axes |= {2 * size for size in axes} | {2 * size - 1 for size in axes}
    names = ["vocabulary_size", "num_segments", "embedding_dim", "hidden_dim", "intermediate_dim"]
    names += ["max_sequence_length"] if config.get("position_scheme") == "learned" else []
    for name in names:
        size = config.get(name)
        if size not in (None, 0) and size not in axes:
            raise ValueError(
                f"`{name}` in {file} must be the length of an axis of the weights beside it. "
                f"Received: {name}={size!r}"
            )
    blocks = {"num_layers": "encoder_block", "num_decoder_layers": "decoder_block"}
    for name, layer in blocks.items():
        stored = {m[0] for m in re.finditer(rf"{layer}(_\d+)?/", "\n".join(arrays.shapes))}
        if stored and name in config and config[name] != len(stored):
            raise ValueError(
                f"`{name}` in {file} must be {len(stored)}, as in the weights beside it. "
                f"Received: {name}={config[name]!r}"
            )
