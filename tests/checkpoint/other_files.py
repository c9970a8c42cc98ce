"""Writes weights as PyTorch and as TensorFlow's transformers do, without either, and in shards."""

import io
import json
import pickle
import re
import struct
import zipfile

import h5py
import numpy as np

KINDS = {"float32": "Float", "float64": "Double", "float16": "Half", "int64": "Long"}


class Global:
    """Stands for a class or function that a pickle names."""

    def __init__(self, module, name):
        self.module, self.name = module, name


class Call:
    """Stands for what a call of a `Global` returns."""

    def __init__(self, function, *arguments):
        self.function, self.arguments = function, arguments


class Reference(tuple):
    """What `persistent_load` receives."""


class Pickler(pickle._Pickler):
    """Writes these as a pickle of protocol 2."""

    def __init__(self, stream):
        super().__init__(stream, protocol=2)

    def persistent_id(self, value):
        return tuple(value) if isinstance(value, Reference) else None

    def save(self, value, save_persistent_id=True):
        if isinstance(value, Global):
            self.write(pickle.GLOBAL + f"{value.module}\n{value.name}\n".encode())
        elif isinstance(value, Call):
            self.save(value.function)
            self.save(value.arguments)
            self.write(pickle.REDUCE)
        else:
            super().save(value, save_persistent_id)


def dumps(value):
    stream = io.BytesIO()
    Pickler(stream).dump(value)
    return stream.getvalue()


def state_of(arrays, old=False):
    """Returns a state dict, and the bytes of its storages."""
    state, storages = {}, {}
    for key, (name, array) in enumerate(arrays.items()):
        array = np.ascontiguousarray(array)
        kind = Global("torch", f"{KINDS[array.dtype.name]}Storage")
        view = (None,) if old else ()
        storage = Reference(("storage", kind, str(key), "cpu", array.size, *view))
        strides = tuple(stride // array.itemsize for stride in array.strides)
        rebuild = Global("torch._utils", "_rebuild_tensor_v2")
        hooks = Call(Global("collections", "OrderedDict"))
        state[name] = Call(rebuild, storage, 0, array.shape, strides, False, hooks)
        storages[str(key)] = array
    return state, storages


def write_pickle(file, content):
    """Writes an archive of PyTorch that has nothing but a pickle."""
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("archive/data.pkl", content)


def write_torch(file, arrays=None, old=False, state=None, storages=()):
    """Writes what `torch.save` would: arrays, or any state with its storages."""
    if state is None:
        state, storages = state_of(arrays, old)
    if old:
        parts = [0x1950A86A20F9469CFC6C, 1001, {"protocol_version": 1001, "little_endian": True}]
        content = b"".join(map(dumps, (*parts, state, list(storages))))
        for array in dict(storages).values():
            content += struct.pack("<q", array.size) + array.tobytes()
        file.write_bytes(content)
        return
    write_pickle(file, dumps(state))
    with zipfile.ZipFile(file, "a") as archive:
        archive.writestr("archive/byteorder", "little")
        for key, array in dict(storages).items():
            archive.writestr(f"archive/data/{key}", array.tobytes())
        archive.writestr("archive/version", "3\n")


def take_tensors(folder):
    """Returns the tensors of a Hugging Face folder, and deletes their file."""
    from safetensors.numpy import load_file

    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    return tensors


def write_shards(folder, tensors):
    """Writes every other tensor to each of two files, and their index."""
    from safetensors.numpy import save_file

    names, weight_map = sorted(tensors), {}
    for i, part in enumerate((names[::2], names[1::2])):
        file = f"model-{i + 1:05d}-of-00002.safetensors"
        save_file({name: tensors[name] for name in part}, folder / file)
        weight_map |= dict.fromkeys(part, file)
    index = {"metadata": {"total_size": 1}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def write_tf_h5(file, arrays, model="tf_ro_former_for_masked_lm"):
    """Writes `tf_model.h5` of tensors with PyTorch's names, as `TFRoFormerForMaskedLM` saves them.

    The group of the head has a copy of the embeddings that it shares.
    """
    with h5py.File(file, "w") as stored:
        for name, array in arrays.items():
            if name == "cls.predictions.decoder.weight":
                continue
            parts = re.sub(r"layer\.(\d+)", r"layer_@_\1", name).split(".")
            if "word_embeddings" in parts:
                last = "weight"
            elif "token_type_embeddings" in parts or "embed_positions" in parts:
                last = "embeddings"
            elif "LayerNorm" in parts:
                last = {"weight": "gamma", "bias": "beta"}[parts[-1]]
            else:
                last = {"weight": "kernel", "bias": "bias"}[parts[-1]]
            array = array.T if last == "kernel" else array
            top = "mlm___cls" if parts[0] == "cls" else "roformer"
            path = "/".join((model, top, *parts[1:-1], f"{last}:0")).replace("@", ".")
            stored[f"{top}/{path}"] = array
            if path.startswith(f"{model}/roformer/embeddings/") and "mlm" not in path:
                stored[f"mlm___cls/{path}"] = array
