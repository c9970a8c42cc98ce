"""Files of `torch.save` are read without PyTorch, to the bit, and none of them can run code."""

import os
import pickle
import sys
import zipfile

import numpy as np
import pytest

from roformer_tf.checkpoint.torch_file import TorchTensors
from tests.checkpoint.other_files import (
    Call,
    Global,
    Reference,
    dumps,
    state_of,
    write_pickle,
    write_torch,
)
from tests.hostile.test_tricks import Payload

FORMS = pytest.mark.parametrize("old", [False, True], ids=["archive", "before 1.6"])
FLOAT = Global("torch", "FloatStorage")
REBUILD = Global("torch._utils", "_rebuild_tensor_v2")


@pytest.fixture
def file(tmp_path):
    return tmp_path / "pytorch_model.bin"


def read(file):
    tensors = TorchTensors(file)
    arrays = {name: tensors.read(name) for name in tensors.names}
    for name, array in arrays.items():
        assert tensors.describe(name) == (array.shape, array.dtype)
    return arrays


@FORMS
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64", "int64", "bool"])
def test_pytorch_agrees(file, old, dtype):
    torch = pytest.importorskip("torch", reason="compares with PyTorch: make hf")
    torch.manual_seed(1)
    base = torch.randn(6, 8, dtype=torch.float64).mul(100).to(getattr(torch, dtype))
    whole = torch.arange(24, dtype=torch.float32)
    state = {
        "whole": base,
        "transposed": base.t(),
        "a column": base[:, 3],
        "every other": base[1::2, ::3],
        "again": base,
        "scalar": base[2, 2],
        "empty": base[:0],
        "expanded": base[:1].expand(5, 8),
        "view": whole[4:20].view(4, 4),
        "parameter": torch.nn.Parameter(whole[:6].clone()),
        "permuted": whole.view(2, 3, 4).permute(2, 0, 1),
    }
    torch.save(state, file, _use_new_zipfile_serialization=not old)
    found = read(file)
    assert set(found) == set(state)
    loaded = torch.load(file, weights_only=True)
    for name, tensor in loaded.items():
        tensor = tensor.detach()
        wanted = (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
        assert found[name].dtype == wanted.dtype and found[name].shape == wanted.shape, name
        assert found[name].tobytes() == wanted.tobytes(), name


@FORMS
def test_pytorch_reads_what_these_tests_write(file, old, rng):
    """The tests without PyTorch write the same files as PyTorch."""
    torch = pytest.importorskip("torch", reason="compares with PyTorch: make hf")
    arrays = {"a": rng.normal(size=(3, 4)).astype("float32"), "b": np.arange(5)}
    write_torch(file, arrays, old)
    for name, tensor in torch.load(file, weights_only=True).items():
        np.testing.assert_array_equal(tensor.numpy(), arrays[name])


def test_a_state_dict_with_metadata(file):
    torch = pytest.importorskip("torch", reason="compares with PyTorch: make hf")
    layer = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.LayerNorm(2))
    torch.save(layer.state_dict(), file)
    found = read(file)
    assert list(found) == sorted(layer.state_dict())
    for name, tensor in layer.state_dict().items():
        np.testing.assert_array_equal(found[name], tensor.numpy())


@FORMS
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int64"])
def test_without_pytorch(file, old, dtype, rng, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)  # an import of it would be an error
    arrays = {"a": rng.normal(size=(3, 4)).astype(dtype), "b": np.arange(5).astype(dtype)}
    write_torch(file, arrays, old)
    for name, array in read(file).items():
        np.testing.assert_array_equal(array, arrays[name])


GADGETS = {
    "os.system": Call(Global("os", "system"), "touch made"),
    "posix.mkdir": Call(Global("posix", "mkdir"), "made"),
    "builtins.eval": Call(Global("builtins", "eval"), "__import__('os').mkdir('made')"),
    "builtins.exec": Call(Global("builtins", "exec"), "import os; os.mkdir('made')"),
    "__builtin__.eval": Call(Global("__builtin__", "eval"), "1"),
    "builtins.getattr": Call(Global("builtins", "getattr"), Global("torch", "FloatStorage"), "x"),
    "subprocess.Popen": Call(Global("subprocess", "Popen"), ["mkdir", "made"]),
    "torch.load": Call(Global("torch", "load"), "other.bin"),
    "torch.hub.load": Call(Global("torch.hub", "load"), "user/repo"),
    "torch._utils._import_dotted_name": Call(Global("torch._utils", "_import_dotted_name"), "os"),
    "torch.storage._load_from_bytes": Call(Global("torch.storage", "_load_from_bytes"), b"x"),
    "torch.FloatStorage.from_file": Call(Global("torch", "FloatStorage.from_file"), "secret"),
    "collections.OrderedDict.fromkeys": Call(Global("collections", "OrderedDict.fromkeys"), "ab"),
    "collections.defaultdict": Call(Global("collections", "defaultdict"), Global("os", "system")),
    "numpy.core.multiarray._reconstruct": Global("numpy.core.multiarray", "_reconstruct"),
    "shutil.rmtree": Call(Global("shutil", "rmtree"), "made"),
    "pickle.loads": Call(Global("pickle", "loads"), b"."),
    "importlib.import_module": Call(Global("importlib", "import_module"), "antigravity"),
    "types.CodeType": Global("types", "CodeType"),
    "roformer_tf.checkpoint.torch_file._Rebuild": Global(
        "roformer_tf.checkpoint.torch_file", "_Rebuild"
    ),
}


@FORMS
@pytest.mark.parametrize("name", GADGETS)
def test_names_of_anything_else_are_refused(file, old, name, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    first = state_of({"a": np.zeros(3, "float32")})
    for state in (GADGETS[name], {**first[0], "b": GADGETS[name]}, {"b": (GADGETS[name], 1)}):
        write_torch(file, old=old, state=state, storages=first[1])
        with pytest.raises(ValueError, match=rf"names '{name}', .* Nothing of it was run"):
            TorchTensors(file)
    assert os.listdir(tmp_path) == ["pytorch_model.bin"]


@FORMS
def test_nothing_runs_before_the_refusal(file, old, monkeypatch):
    """Not even what is allowed: the instructions are checked first."""
    import roformer_tf.checkpoint.torch_file as module

    called = []
    monkeypatch.setattr(module._Rebuild, "__call__", lambda *_: called.append(1))
    state, storages = state_of({"a": np.zeros(3, "float32")})
    write_torch(file, old=old, state={**state, "b": GADGETS["os.system"]}, storages=storages)
    with pytest.raises(ValueError, match="os.system"):
        TorchTensors(file)
    assert not called


INSTRUCTIONS = {
    "INST": b"\x80\x02(S'made'\nios\nsystem\n.",
    "OBJ": b"\x80\x02(cos\nsystem\nS'made'\no.",
    "STACK_GLOBAL": b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x04made\x85R.",
    "EXT1": b"\x80\x02\x82\x01.",
    "NEWOBJ": b"\x80\x02cos\nsystem\n)\x81.",
    "NEWOBJ_EX": b"\x80\x04)}\x92.",
    "PERSID": b"P1\n.",
    "BYTEARRAY8": b"\x80\x05\x96\x08\0\0\0\0\0\0\0" + bytes(8) + b".",
    "NEXT_BUFFER": b"\x80\x05\x97.",
}


@pytest.mark.parametrize("name", INSTRUCTIONS)
def test_instructions_that_pytorch_does_not_write(file, name):
    write_pickle(file, INSTRUCTIONS[name])
    # `INST` names a function, too, but does not reach it
    with pytest.raises(ValueError, match="is no plain file of weights"):
        TorchTensors(file)


@FORMS
def test_payloads_of_pickle_itself(file, old, tmp_path):
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        content = pickle.dumps({"a": Payload(tmp_path / "made")}, protocol)
        if old:
            file.write_bytes(content)
        else:
            write_pickle(file, content)
        with pytest.raises(ValueError, match="pytorch_model.bin is no plain file|is damaged"):
            TorchTensors(file)
    assert not (tmp_path / "made").exists()


def storage(size=4, key="0", kind=FLOAT):
    return Reference(("storage", kind, key, "cpu", size))


WRONG = {
    "beyond its storage": Call(REBUILD, storage(), 1, (4,), (1,), False, {}),
    "strides beyond": Call(REBUILD, storage(), 0, (2,), (4,), False, {}),
    "a negative offset": Call(REBUILD, storage(), -1, (1,), (1,), False, {}),
    "a negative stride": Call(REBUILD, storage(), 3, (4,), (-1,), False, {}),
    "a float as size": Call(REBUILD, storage(), 0, (1.0,), (1,), False, {}),
    "True as size": Call(REBUILD, storage(), 0, (True,), (1,), False, {}),
    "ranks that differ": Call(REBUILD, storage(), 0, (2, 2), (1,), False, {}),
    "repeated numbers": Call(REBUILD, storage(), 0, (2**20, 2**20), (0, 0), False, {}),
    "overlapping rows": Call(REBUILD, storage(), 0, (3, 2), (1, 1), False, {}),
    "many axes": Call(REBUILD, storage(), 0, (1,) * 40, (1,) * 40, False, {}),
    "no storage": Call(REBUILD, FLOAT, 0, (1,), (1,), False, {}),
    "a storage that is a type": Call(FLOAT, 3),
    "a list as shape": Call(REBUILD, storage(), 0, [4], [1], False, {}),
    "no arguments": Call(REBUILD),
    "a storage of a string": Call(REBUILD, storage(kind="float32x"), 0, (4,), (1,), False, {}),
    "a key in another folder": Call(REBUILD, storage(key="../0"), 0, (4,), (1,), False, {}),
    "a size in words": Call(REBUILD, storage(size="4"), 0, (4,), (1,), False, {}),
    "a larger storage": Call(REBUILD, storage(size=10**9), 0, (10**9,), (1,), False, {}),
    "a parameter of nothing": Call(Global("torch._utils", "_rebuild_parameter"), 1),
    "no tensor": 3,
    "a list": [1, 2],
    "a dict": {"x": {}},
}


@FORMS
@pytest.mark.parametrize("kind", WRONG)
def test_tensors_that_are_none(file, old, kind):
    write_torch(
        file, old=old, state={"a": WRONG[kind]}, storages={"0": np.arange(4, dtype="float32")}
    )
    with pytest.raises(ValueError, match="pytorch_model.bin (is damaged|must hold a dict of ten)"):
        TorchTensors(file)


def test_a_function_cannot_be_changed(file):
    """`BUILD` sets attributes, also of functions if they are left in reach."""
    for target in (REBUILD, Global("collections", "OrderedDict"), FLOAT):
        content = dumps(target)[:-1] + dumps(({"__defaults__": (1,)}, {"__kwdefaults__": 1}))[2:-1]
        write_pickle(file, content + b"b.")
        with pytest.raises(ValueError, match="is damaged"):
            TorchTensors(file)
    write_torch(file, {"a": np.arange(3, dtype="float32")})
    np.testing.assert_array_equal(read(file)["a"], [0, 1, 2])


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x02}r\xff\xff\xff\x7f.",  # a place in the memo that would take 32 GB
        b"\x80\x02X\xff\xff\xff\x7fabc.",  # a string of 2 GB
        b"\x80\x02\x8b\xff\xff\xff\x7f.",  # a number of 2 GB
        b"\x80\x02" + b"]" * 1_000_100 + b".",
    ],
)
def test_pickles_that_would_fill_the_memory(file, content):
    write_pickle(file, content)
    with pytest.raises(ValueError, match="pytorch_model.bin is"):
        TorchTensors(file)


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x02}K\x01" + b"\x85" * 900_000 + b"K\x01s.",  # deep: the hash ends the process
        b"\x80\x02}K\x01\x85q\x01" + b"h\x01\x86q\x01" * 60 + b"K\x01s.",  # 2⁶⁰ in one
        b"\x80\x02}K\x01\x85q\x01" + b"(h\x01h\x01h\x01tq\x01" * 40 + b"K\x01s.",
    ],
)
def test_keys_that_would_never_be_hashed(file, content):
    write_pickle(file, content)
    with pytest.raises(ValueError, match="tuples are too deep or too large"):
        TorchTensors(file)


def test_archives_that_are_none(file):
    state, storages = state_of({"a": np.arange(1000, dtype="float32")})
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", dumps(state))
        archive.writestr("archive/data/0", storages["0"].tobytes())
    with pytest.raises(ValueError, match="missing or compressed"):
        TorchTensors(file)
    for names in ((), ("a/data.pkl", "b/data.pkl")):
        with zipfile.ZipFile(file, "w") as archive:
            for name in names:
                archive.writestr(name, dumps(state))
        with pytest.raises(ValueError, match="expected one data.pkl"):
            TorchTensors(file)
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("archive/data.pkl", dumps(state))
        archive.writestr("archive/byteorder", "big")
        archive.writestr("archive/data/0", storages["0"].tobytes())
    with pytest.raises(ValueError, match="big-endian"):
        TorchTensors(file)


def test_every_flipped_bit_of_an_archive_is_noticed_or_harmless(file, rng):
    arrays = {"a": rng.normal(size=(16, 16)).astype("float32"), "b": np.arange(50)}
    write_torch(file, arrays)
    good = file.read_bytes()
    noticed = 0
    for position in rng.integers(len(good), size=300):
        bad = bytearray(good)
        bad[position] ^= 1 << rng.integers(8)
        file.write_bytes(bad)
        try:
            found = read(file)
        except ValueError as error:
            assert "pytorch_model.bin" in str(error)
            noticed += 1
        else:
            assert all((found[name] == arrays[name]).all() for name in arrays)
    assert noticed > 200
