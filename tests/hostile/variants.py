"""Ways to damage a file, drawn at random."""

import io
import json
import os
import shutil
import zipfile
from pathlib import Path

import h5py
import numpy as np

BAD_VALUES = (
    float("nan"), float("inf"), -1, 0, 1e30, 10**12, True, "x", "", None, [1e-12], {}, "绝", -0.5,
)  # fmt: skip
WHOLE_JSON = (
    "{", "[]", "null", "{}", "3", '"x"', "", "[" * 200_000, '{"a":' * 200_000, '{"a": NaN}',
    "\ufeff{}", '{"class_name": "os.system"}', '{"config": null}', "nul", '{"a": 1,}',
)  # fmt: skip


def draw(folder, rng):
    """Damages one file of a folder; returns what was done."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    file = rng.choice(files)
    ways = [*GENERAL]
    if file.suffix == ".json":
        ways += [json_value] * 6 + [json_key] * 3 + [whole_json] * 3
    if file.suffix == ".txt":
        ways += [shuffled_lines, line_twice, line_less, line_more, windows_lines, latin] * 2
    if file.suffix == ".h5":
        ways += [h5_without, h5_dtype, h5_nan, h5_shape] * 3
    if file.suffix == ".safetensors":
        ways += [safetensors_dtype, safetensors_header] * 4
    if file.name.endswith(".safetensors.index.json"):
        ways += [shard_names] * 8
    if file.suffix == ".npz":
        ways += [npz_array] * 4
    if file.suffix == ".bin":
        ways += [pickle_bit, pickle_bit, pickle_name] * 4
    way = rng.choice(ways)
    what = way(file, rng)
    return f"{file.relative_to(folder)}: {way.__name__}{f' {what}' if what else ''}"


# --- any file


def missing(file, rng):
    file.unlink()


def empty(file, rng):
    file.write_bytes(b"")


def truncated(file, rng):
    data = file.read_bytes()
    size = rng.randrange(max(1, len(data)))
    file.write_bytes(data[:size])
    return f"to {size} of {len(data)} bytes"


def longer(file, rng):
    file.write_bytes(file.read_bytes() + rng.randbytes(100))


def bit_flip(file, rng):
    data = bytearray(file.read_bytes())
    position = rng.randrange(len(data))
    data[position] ^= 1 << rng.randrange(8)
    file.write_bytes(data)
    return f"in byte {position}"


def random_bytes(file, rng):
    file.write_bytes(rng.randbytes(len(file.read_bytes())))


def zeros(file, rng):
    data = bytearray(file.read_bytes())
    start = rng.randrange(len(data))
    data[start : start + 64] = bytes(len(data[start : start + 64]))
    file.write_bytes(data)
    return f"from byte {start}"


def folder_instead(file, rng):
    file.unlink()
    file.mkdir()


def link_to_itself(file, rng):
    file.unlink()
    os.symlink(file.name, file)


def link_to_nothing(file, rng):
    file.unlink()
    os.symlink("no/such/file", file)


def link_to_zeros(file, rng):
    file.unlink()
    os.symlink("/dev/zero", file)


def pipe(file, rng):
    file.unlink()
    os.mkfifo(file)


def other_file(file, rng):
    others = sorted(path for path in file.parent.iterdir() if path.is_file() and path != file)
    if others:
        shutil.copyfile(rng.choice(others), file)


def git_lfs_pointer(file, rng):
    file.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n")


GENERAL = (
    missing, empty, truncated, truncated, longer, bit_flip, bit_flip, bit_flip, random_bytes, zeros,
    folder_instead, link_to_itself, link_to_nothing, link_to_zeros, pipe, other_file,
    git_lfs_pointer,
)  # fmt: skip


# --- JSON


def whole_json(file, rng):
    text = rng.choice(WHOLE_JSON)
    file.write_text(text, encoding="utf-8")
    return repr(text[:20])


def _change(file, rng, change):
    """Calls `change(container, key)` for one entry at any depth."""
    data = json.loads(file.read_text(encoding="utf-8"))
    entries = []

    def walk(node):
        items = node.items() if isinstance(node, dict) else enumerate(node)
        for key, value in items:
            entries.append((node, key))
            if isinstance(value, dict | list):
                walk(value)

    walk(data)
    container, key = rng.choice(entries)
    what = change(container, key)
    file.write_text(json.dumps(data), encoding="utf-8")
    return what


def json_value(file, rng):
    value = rng.choice(BAD_VALUES)

    def change(container, key):
        container[key] = value
        return f"{key} = {value!r}"

    return _change(file, rng, change)


def json_key(file, rng):
    def change(container, key):
        del container[key]
        return f"without {key}"

    return _change(file, rng, change)


def shard_names(file, rng):
    data = json.loads(file.read_text(encoding="utf-8"))
    key = rng.choice(sorted(data["weight_map"]))
    names = "../x", "/etc/passwd", "../../etc/passwd", 3, None, [], "", ".", "x\0y", "x" * 5000
    data["weight_map"][key] = name = rng.choice(names)
    file.write_text(json.dumps(data), encoding="utf-8")
    return repr(name)[:30]


# --- text


def _lines(file, rng, change):
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    change(lines)
    file.write_text("".join(lines), encoding="utf-8")


def shuffled_lines(file, rng):
    _lines(file, rng, rng.shuffle)


def line_twice(file, rng):
    _lines(file, rng, lambda lines: lines.insert(rng.randrange(len(lines)), rng.choice(lines)))


def line_less(file, rng):
    _lines(file, rng, lambda lines: lines.pop(rng.randrange(len(lines))))


def line_more(file, rng):
    _lines(file, rng, lambda lines: lines.append("more\n"))


def windows_lines(file, rng):
    file.write_bytes(file.read_bytes().replace(b"\n", b"\r\n"))


def latin(file, rng):
    file.write_bytes(file.read_bytes() + b"caf\xe9\n")


# --- arrays


def _h5(file, rng, change):
    with h5py.File(file, "r+") as stored:
        names = []
        stored.visititems(
            lambda name, node: names.append(name) if isinstance(node, h5py.Dataset) else None
        )
        name = rng.choice(sorted(names))
        array = stored[name][()]
        del stored[name]
        array = change(array)
        if array is not None:
            stored[name] = array
    return name


def h5_without(file, rng):
    return _h5(file, rng, lambda array: None)


def h5_dtype(file, rng):
    dtype = rng.choice(("int32", "S8", "complex64", "bool"))
    return _h5(file, rng, lambda array: array.astype(dtype))


def h5_nan(file, rng):
    def change(array):
        array = np.array(array, "float32")
        array.flat[rng.randrange(array.size)] = rng.choice((np.nan, np.inf))
        return array

    return _h5(file, rng, change)


def h5_shape(file, rng):
    return _h5(file, rng, lambda array: np.concatenate([np.atleast_1d(array)] * 2))


def npz_array(file, rng):
    with np.load(file) as stored:
        arrays = dict(stored)
    name = rng.choice(sorted(arrays))
    how = rng.choice(("missing", "zeros", "float", "longer", "pickle"))
    if how == "missing":
        del arrays[name]
    elif how == "zeros":
        arrays[name] = np.zeros_like(arrays[name])
    elif how == "float":
        arrays[name] = np.float64(np.zeros(arrays[name].shape)) / 3
    elif how == "longer":
        arrays[name] = np.concatenate([np.atleast_1d(arrays[name])] * 2)
    else:
        arrays[name] = np.array([print], dtype=object)
    with io.BytesIO() as data:
        np.savez(data, **arrays)
        file.write_bytes(data.getvalue())
    return f"{name} {how}"


def safetensors_dtype(file, rng):
    data = file.read_bytes()
    size = int.from_bytes(data[:8], "little")
    dtype = rng.choice((b"I32", b"U32", b"F16", b"XYZ"))
    header = data[8 : 8 + size].replace(b'"F32"', b'"' + dtype + b'"', 1)
    file.write_bytes(data[:8] + header + data[8 + size :])
    return dtype.decode()


def safetensors_header(file, rng):
    data = file.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    names = [name for name in header if name != "__metadata__"]
    name = rng.choice(sorted(names))
    how = rng.choice(("offsets", "shape", "name", "null", "huge"))
    if how == "offsets":
        header[name]["data_offsets"] = [0, 10**15]
    elif how == "shape":
        header[name]["shape"] = header[name]["shape"][::-1] + [1]
    elif how == "name":
        header["../" + name] = header.pop(name)
    elif how == "null":
        header[name] = None
    text = json.dumps(header).encode()
    length = 2**63 if how == "huge" else len(text)
    file.write_bytes(length.to_bytes(8, "little") + text + data[8 + size :])
    return how


def _pickle(file, change):
    """Changes the pickle in a file of PyTorch, with checksums that fit, as who means harm would."""
    if not zipfile.is_zipfile(file):  # the form before PyTorch 1.6
        file.write_bytes(change(file.read_bytes()))
        return
    with zipfile.ZipFile(file) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, change(content) if name.endswith("data.pkl") else content)


def pickle_bit(file, rng):
    def change(data):
        data = bytearray(data)
        end = data.rfind(b"_rebuild_tensor_v2") + 200  # numbers may follow
        data[rng.randrange(min(len(data), end))] ^= 1 << rng.randrange(8)
        return bytes(data)

    _pickle(file, change)


def pickle_name(file, rng):
    old = rng.choice((b"ctorch._utils\n_rebuild_tensor_v2\n", b"ccollections\nOrderedDict\n"))
    new = rng.choice((b"cos\nsystem\n", b"cbuiltins\neval\n", b"ctorch\nFloatStorage\n"))
    _pickle(file, lambda data: data.replace(old, new))
    return new.decode().split()[1]


# --- .keras and .zip archives


def damaged_archive(path, rng):
    """Changes a `.keras` or `.zip` file: its bytes, or a file in it."""
    if rng.random() < 0.4:
        way = rng.choice((empty, truncated, bit_flip, random_bytes, zeros, longer, folder_instead))
        what = way(path, rng)
        return f"{way.__name__} {what or ''}"
    folder = Path(f"{path}-unpacked")
    with zipfile.ZipFile(path) as archive:
        archive.extractall(folder)
    what = draw(folder, rng)
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted(folder.rglob("*")):
            if file.is_file() and not file.is_symlink():
                archive.write(file, file.relative_to(folder))
    shutil.rmtree(folder)
    return what
