"""Reads the tensors in a file that `torch.save` wrote, without PyTorch and without running code.

Such a file is a pickle, a small program that builds objects by calling functions that it names. A
hostile one names `os.system`. So a pickle is read twice. First its instructions are compared with a
list of what a file of tensors needs; none of them runs. Then an `Unpickler` reads it that finds
nothing outside this list. A tensor becomes the place of its numbers in the file.

Both forms are read: the archive of PyTorch 1.6 and later, and the earlier sequence of pickles.

Reference: `torch/serialization.py` of PyTorch (`_load`, `_legacy_load`).
"""

import io
import math
import os
import pickle
import pickletools
import struct
import zipfile
import zlib
from typing import NamedTuple

import numpy as np

from roformer_tf.checkpoint.damage import COPY, first_line

# What `torch.save` writes for a dict of tensors, with Python 2 or 3.
_OPCODES = frozenset(
    "PROTO STOP MARK NONE NEWTRUE NEWFALSE BININT BININT1 BININT2 LONG1 BINFLOAT BINUNICODE "
    "BINSTRING SHORT_BINSTRING EMPTY_DICT EMPTY_LIST EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 APPEND "
    "APPENDS SETITEM SETITEMS BINPUT LONG_BINPUT BINGET LONG_BINGET GLOBAL BINPERSID REDUCE "
    "BUILD".split()
)
_MAX_OPCODES, _MAX_PICKLE_BYTES = 1_000_000, 2**26
# The most tuples in one tuple, each counted as often as it occurs: the work of hashing the tuple.
# Deep ones would crash the process, and those that repeat each other would take forever.
_MAX_TUPLE = 1000
_MAGIC, _PROTOCOL = 0x1950A86A20F9469CFC6C, 1001  # how a file before PyTorch 1.6 begins
_DTYPES = {
    "Double": "float64", "Float": "float32", "Half": "float16", "BFloat16": "bfloat16",
    "Long": "int64", "Int": "int32", "Short": "int16", "Char": "int8", "Byte": "uint8",
    "Bool": "bool",
}  # fmt: skip
_LOCAL_HEADER = struct.Struct("<4s22xHH")  # begins each file in an archive; ends with two lengths


class _Storage(NamedTuple):
    """A run of numbers in the file."""

    key: str
    dtype: str
    size: int


class _Tensor(NamedTuple):
    """A view of a storage; `offset` and `strides` count numbers."""

    storage: _Storage
    offset: int
    shape: tuple
    strides: tuple


class _Dict(dict):
    """Stands for `OrderedDict`. The attributes that PyTorch gives it are left out."""

    def __setstate__(self, state):
        pass


class _Rebuild:
    """Stands for the functions of `torch._utils` that make a tensor of a storage."""

    __slots__ = ()

    def __setstate__(self, state):
        raise ValueError("A function cannot be changed.")

    def __call__(self, storage, offset, shape, strides, *_):
        numbers = (offset, *shape, *strides) if type(shape) is type(strides) is tuple else (None,)
        if type(storage) is not _Storage or not all(type(n) is int and n >= 0 for n in numbers):
            raise ValueError("A tensor needs a storage, an offset, a shape and strides.")
        last = sum((n - 1) * stride for n, stride in zip(shape, strides))
        inside = offset + last < storage.size or 0 in shape
        if len(shape) != len(strides) or len(shape) > 8 or not inside:
            raise ValueError(f"A tensor of shape {shape} is not inside its storage.")
        if math.prod(shape) > storage.size:  # a few bytes would fill the memory
            raise ValueError(
                f"A tensor of shape {shape} repeats the {storage.size} numbers it has."
            )
        return _Tensor(storage, offset, shape, strides)


class _RebuildParameter(_Rebuild):
    __slots__ = ()

    def __call__(self, tensor, *_):
        if type(tensor) is not _Tensor:
            raise ValueError("A parameter needs a tensor.")
        return tensor


_ALLOWED = {
    ("collections", "OrderedDict"): _Dict,
    ("torch._utils", "_rebuild_tensor"): _Rebuild(),
    ("torch._utils", "_rebuild_tensor_v2"): _Rebuild(),
    ("torch._utils", "_rebuild_parameter"): _RebuildParameter(),
    # strings, so that nothing can be called or changed
    **{("torch", f"{name}Storage"): dtype for name, dtype in _DTYPES.items()},
}


class _Unpickler(pickle.Unpickler):
    def __init__(self, stream, storages):
        super().__init__(stream, encoding="utf-8")
        self._storages = storages

    def find_class(self, module, name):
        if (module, name) not in _ALLOWED:
            raise ValueError(f"{module}.{name} builds no tensor.")
        return _ALLOWED[module, name]

    def persistent_load(self, reference):
        """Returns the storage that `("storage", type, key, device, size)` stands for."""
        if type(reference) is not tuple or len(reference) < 5 or any(reference[5:]):
            raise ValueError("A storage must be a type, a key, a device and a size.")
        kind, dtype, key, _, size = reference[:5]
        valid = type(dtype) is type(key) is str and dtype in _DTYPES.values()
        if kind != "storage" or not valid or type(size) is not int or size < 0:
            raise ValueError("A storage must be a type, a key, a device and a size.")
        storage = _Storage(key, dtype, size)
        if self._storages.setdefault(key, storage) != storage:
            raise ValueError(f"The storage {key!r:.50} has two types or sizes.")
        return storage


class TorchTensors:
    """The tensors of one file that `torch.save` wrote.

    Args:
        file: Path. It must exist.

    Attributes:
        names: list of str, sorted.

    Raises:
        ValueError: If the file is damaged, holds anything other than a dict of tensors, or names
            anything that does not build tensors. Nothing in it is run.
    """

    def __init__(self, file):
        self._file, self._storages, self._last = file, {}, (None, None)
        size = file.stat().st_size
        try:
            with open(file, "rb") as stream:
                is_archive = zipfile.is_zipfile(stream)
                stream.seek(0)
                state = (self._open_archive if is_archive else self._open_pickles)(stream)
        except _Refused as error:
            raise ValueError(f"{file} {error}") from error
        except Exception as error:  # UnpicklingError, BadZipFile, EOFError, struct.error, …
            raise ValueError(
                f"{file} is damaged, cut off ({size:,} bytes) or not a file of weights: "
                f"{first_line(error):.200}. {COPY}"
            ) from error
        tensors = state.values() if isinstance(state, dict) else [state]
        kind = next((type(tensor).__name__ for tensor in tensors if type(tensor) is not _Tensor), 0)
        if kind:
            raise ValueError(
                f"{file} must hold a dict of tensors, as `torch.save(model.state_dict(), file)` "
                f"writes it. Received: {kind}{' in it' if isinstance(state, dict) else ''}"
            )
        self._tensors = {str(name): tensor for name, tensor in state.items()}
        self.names = sorted(self._tensors)

    def describe(self, name):
        """Returns shape and dtype of a tensor."""
        tensor = self._tensors[name]
        return tensor.shape, _numpy_dtype(tensor.storage.dtype, widen=True)

    def read(self, name):
        """Returns the numbers of a tensor. NumPy has no bfloat16, so these become float32."""
        storage, offset, shape, strides = self._tensors[name]
        if 0 in shape:
            return np.zeros(shape, self.describe(name)[1])
        numbers = self._read_storage(storage)
        strides = [stride * numbers.itemsize for stride in strides]
        array = np.lib.stride_tricks.as_strided(numbers[offset:], shape, strides, writeable=False)
        array = np.ascontiguousarray(array).reshape(shape)
        if storage.dtype == "bfloat16":  # the upper half of a float32
            array = (array.astype("uint32") << 16).view("float32")
        return array

    def _read_storage(self, storage):
        if self._last[0] == storage.key:
            return self._last[1]
        start, checksum = self._places[storage.key]
        dtype = _numpy_dtype(storage.dtype)
        count = storage.size * dtype.itemsize
        with open(self._file, "rb") as stream:
            stream.seek(start)
            data = stream.read(count)
        if len(data) < count or (checksum is not None and zlib.crc32(data) != checksum):
            raise ValueError(
                f"{self._file} is damaged: its tensor data {storage.key!r:.50} is not what was "
                f"saved (CRC-32). {COPY}"
            )
        numbers = np.frombuffer(data, dtype)
        self._last = (storage.key, numbers)  # kept, since the next tensor may be a view of it
        return numbers

    def _open_archive(self, stream):
        """Reads the form of PyTorch 1.6 and later: a ZIP archive, nothing in it compressed."""
        with zipfile.ZipFile(stream) as archive:
            files = {info.filename: info for info in archive.infolist()}
            pickles = [name for name in files if name.endswith("/data.pkl")]
            if len(pickles) != 1 or files[pickles[0]].file_size > _MAX_PICKLE_BYTES:
                raise ValueError("expected one data.pkl in the archive")
            root = pickles[0].removesuffix("data.pkl")
            if f"{root}byteorder" in files and archive.read(f"{root}byteorder") != b"little":
                raise ValueError("its bytes are in the order of a big-endian machine")
            state = _load(io.BytesIO(archive.read(pickles[0])), self._storages)
        size = stream.seek(0, os.SEEK_END)
        self._places = {}
        for key, storage in self._storages.items():
            info = files.get(f"{root}data/{key}")
            if info is None or info.compress_type != zipfile.ZIP_STORED:
                raise ValueError(f"the tensor data {key!r:.50} is missing or compressed")
            stream.seek(info.header_offset)
            signature, *lengths = _LOCAL_HEADER.unpack(stream.read(_LOCAL_HEADER.size))
            start = info.header_offset + _LOCAL_HEADER.size + sum(lengths)
            count = storage.size * _numpy_dtype(storage.dtype).itemsize
            if signature != b"PK\3\4" or count > info.file_size or start + count > size:
                raise ValueError(f"the tensor data {key!r:.50} is cut off")
            self._places[key] = start, info.CRC if count == info.file_size else None
        return state

    def _open_pickles(self, stream):
        """Reads the form before PyTorch 1.6: five pickles, then the numbers of each storage."""
        if _load(stream, {}) != _MAGIC or _load(stream, {}) != _PROTOCOL:
            raise ValueError("it does not begin as `torch.save` begins a file")
        machine = _load(stream, {})
        if not isinstance(machine, dict) or machine.get("little_endian") is not True:
            raise ValueError("its bytes are in the order of a big-endian machine")
        state, keys = _load(stream, self._storages), _load(stream, {})
        if type(keys) is not list or not all(type(key) is str for key in keys):
            raise ValueError("expected the keys of the tensor data")
        size = os.fstat(stream.fileno()).st_size
        self._places = {}
        for key in keys:
            storage = self._storages[key]
            (count,) = struct.unpack("<q", stream.read(8))
            start = stream.tell()
            end = start + count * _numpy_dtype(storage.dtype).itemsize
            if count != storage.size or end > size:
                raise ValueError(f"the tensor data {key!r:.50} is cut off")
            self._places[key] = start, None
            stream.seek(end)
        if set(keys) != set(self._storages):
            raise ValueError("some of the tensor data is missing")
        return state


class _Refused(Exception):
    """A pickle has something that a file of tensors does not need."""


def _load(stream, storages):
    """Checks one pickle, then loads it. The stream is at its end afterwards."""
    start = stream.tell()
    _check_instructions(stream)
    stream.seek(start)
    return _Unpickler(stream, storages).load()


def _check_instructions(stream):
    """Raises an error if a pickle is more than a dict of tensors. Nothing of it runs."""
    tuples = _TupleSizes()
    for number, (opcode, argument, _) in enumerate(pickletools.genops(stream)):
        if opcode.name == "GLOBAL" and tuple(argument.split(" ", 1)) not in _ALLOWED:
            name = argument.replace(" ", ".")
            raise _Refused(
                f"is no plain file of weights: its pickle names {name!r:.100}, which builds no "
                "tensor and could run any code. Nothing of it was run. Get the weights as "
                "model.safetensors, or save them with `torch.save(model.state_dict(), file)`."
            )
        if opcode.name not in _OPCODES:
            raise _Refused(
                f"is no plain file of weights: its pickle has the instruction {opcode.name}, which "
                "`torch.save` does not write for a dict of tensors. Nothing of it was run. Get the "
                "weights as model.safetensors."
            )
        # the memo is an array: one large index would allocate all of the memory
        if opcode.name.endswith("BINPUT") and argument > number or number > _MAX_OPCODES:
            raise ValueError("its pickle is too large")
        if tuples.follow(opcode, argument) > _MAX_TUPLE:
            raise ValueError("its tuples are too deep or too large")


class _TupleSizes:
    """Simulates the stack of a pickle: holds the size of each tuple, and 1 for anything else."""

    _MARK = 0

    def __init__(self):
        self._stack, self._memo = [], {}

    def follow(self, opcode, argument):
        """Simulates an instruction, and returns the size of what is then on top of the stack."""
        stack, name = self._stack, opcode.name
        if "BINPUT" in name:
            self._memo[argument] = stack[-1]
        elif "BINGET" in name:
            stack.append(self._memo[argument])
        else:
            takes = [kind.name for kind in opcode.stack_before]
            parts = []
            if "mark" in takes:
                while (size := stack.pop()) != self._MARK:
                    parts.append(size)
                takes = takes[: takes.index("mark")]
            parts += [stack.pop() for _ in takes]
            size = 1 + sum(parts) if name.startswith("TUPLE") else 1
            stack += [self._MARK if name == "MARK" else size for _ in opcode.stack_after]
        return stack[-1] if stack else 0


def _numpy_dtype(dtype, widen=False):
    if dtype == "bfloat16":
        return np.dtype("float32" if widen else "<u2")
    return np.dtype(dtype).newbyteorder("<")
