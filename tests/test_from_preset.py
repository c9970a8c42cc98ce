"""Every public class loads every kind of folder, or raises an error that names the right class."""

import functools
import shutil

import huggingface_hub.constants  # noqa: F401  (patched by name)
import keras
import numpy as np
import pytest

import roformer_tf
from roformer_tf.checkpoint import convert, inspect_checkpoint, save_checkpoint
from tests.checkpoint.hub_server import HubServer
from tests.checkpoint.other_files import take_tensors, write_tf_h5, write_torch
from tests.layers.harness import assert_equal, variables
from tests.models import builders, seq_2_seq

pytest.importorskip("safetensors")

ENCODERS = ("RoFormerBackbone", "RoFormerMaskedLM", "RoFormerCausalLM")
HEADS = ("RoFormerTextClassifier", "RoFormerTokenClassifier", "RoFormerQuestionAnswering",
         "RoFormerMultipleChoice")  # fmt: skip
OPTIONS = {
    "RoFormerTextClassifier": {"num_classes": 2},
    "RoFormerTokenClassifier": {"labels": ["PER", "LOC"]},
}
SIMS = ("RoFormerSim", "RoFormerSimClassifier")
STRINGS = ("RoFormerTokenizer", "RoFormerMaskedLMPreprocessor", "RoFormerCausalLMPreprocessor",
           "RoFormerTextClassifierPreprocessor", "RoFormerTokenClassifierPreprocessor",
           "RoFormerQuestionAnsweringPreprocessor", "RoFormerMultipleChoicePreprocessor",
           "RoFormerSimPreprocessor", "RoFormerSimClassifierPreprocessor")  # fmt: skip
SEQ_2_SEQ = ("RoFormerSeq2SeqBackbone", "RoFormerSeq2SeqLM", "RoFormerSeq2SeqLMPreprocessor",
             "RoFormerSentencePieceTokenizer")  # fmt: skip

# The masking that a model of each class gets, or a key of ERRORS. "ids": the source's token ids.
TABLE = """
                     Backbone      MaskedLM      CausalLM heads          Sims   strings seq_2_seq
original             bidirectional bidirectional causal   bidirectional  pooler ids     encoder
original_gpt         causal        bidirectional causal   bidirectional  pooler ids     encoder
original_sim         unilm         bidirectional unilm    bidirectional  unilm  ids     encoder
huggingface          bidirectional bidirectional causal   bidirectional  pooler ids     encoder
huggingface_gpt      causal        bidirectional causal   bidirectional  pooler ids     encoder
huggingface_sim      unilm         bidirectional unilm    bidirectional  unilm  ids     encoder
huggingface_headless bidirectional head          head     bidirectional  pooler ids     encoder
preset               bidirectional bidirectional causal   bidirectional  pooler ids     encoder
preset_sim           unilm         unilm         unilm    unilm          unilm  ids     encoder
preset_backbone      bidirectional strings       strings  strings        pooler strings encoder
preset_seq_2_seq     other         other         other    other          other  other   logits
huggingface_h5       bidirectional bidirectional causal   bidirectional  pooler ids     encoder
huggingface_bin      bidirectional bidirectional causal   bidirectional  pooler ids     encoder
original_zip         bidirectional bidirectional causal   bidirectional  pooler ids     encoder
preset_zip           bidirectional bidirectional causal   bidirectional  pooler ids     encoder
huggingface_hub      bidirectional bidirectional causal   bidirectional  pooler ids     encoder
preset_hub           bidirectional bidirectional causal   bidirectional  pooler ids     encoder
"""
SOURCES = {"original_zip": "original.zip", "preset_zip": "preset.zip/preset",
           "huggingface_hub": "hf://user/huggingface", "preset_hub": "hf://user/preset"}  # fmt: skip
ROWS = {row.split()[0]: row.split()[1:] for row in TABLE.strip().splitlines()[1:]}
CELLS = [
    (folder, name, cell)
    for folder, cells in ROWS.items()
    for names, cell in zip((*zip(ENCODERS), HEADS, SIMS, STRINGS, SEQ_2_SEQ), cells, strict=True)
    for name in names
]
ERRORS = {
    "pooler": "{} needs a pooler, .* Classes that can be built from it: RoFormerBackbone",
    "head": "{} needs a masked-LM head, .*: RoFormerBackbone, RoFormerTextClassifier, "
    ".*strict=False",
    "strings": "holds no tokenizer: .* `preprocessor=None`"
    "|has no vocabulary: expected tokenizer.json",
    "encoder": "{} cannot be built from .* holds a RoFormerBackbone, "
    ".* Classes that can: RoFormerBackbone"
    "|cannot be built from .* Use `RoFormerTokenizer.from_preset`|has no vocabulary",
    "other": "{} cannot be built from .* RoFormerSeq2SeqBackbone, .* can: RoFormerSeq2SeqBackbone"
    "|cannot be built from .* Use `RoFormerSentencePieceTokenizer.from_preset`",
}


@functools.cache
def source(kind):
    """Returns the model in a folder, with its preprocessor."""
    if kind == "seq_2_seq":
        return seq_2_seq.translator(num_layers=1)
    options = {"name": "backbone", **builders.SIZES, "num_layers": 1}
    if kind == "sim":
        options |= {"masking": "unilm", "pooler": "linear"}
    cls = roformer_tf.RoFormerSim if kind == "sim" else roformer_tf.RoFormerMaskedLM
    if kind == "gpt":
        options["masking"], cls = "causal", roformer_tf.RoFormerCausalLM
    preprocessor = builders.shared_preprocessor(
        cls.preprocessor_cls, builders.tokenizer(), sequence_length=16
    )
    return builders.randomized(cls(roformer_tf.RoFormerBackbone(**options), preprocessor))


@functools.cache
def reference(kind, masking):
    """Returns the source's backbone with another masking, built without any folder."""
    original = source(kind).backbone
    model = roformer_tf.RoFormerBackbone.from_config({**original.get_config(), "masking": masking})
    for path, weight in variables(model).items():
        weight.assign(variables(original)[path])
    return model


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("folders")
    patch = pytest.MonkeyPatch()
    patch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(root / "hub_cache"))
    with HubServer() as hub:
        patch.setenv("HF_ENDPOINT", hub.url)
        yield make_folders(root, hub)
    patch.undo()


def make_folders(root, hub):
    for ending, kind in (("", "encoder"), ("_gpt", "gpt"), ("_sim", "sim")):
        save_checkpoint(source(kind), root / f"original{ending}")
        convert(root / f"original{ending}", root / f"huggingface{ending}")
    vocabulary = source("encoder").preprocessor.tokenizer.get_vocabulary()
    save_checkpoint(source("encoder").backbone, root / "headless", vocabulary)
    convert(root / "headless", root / "huggingface_headless")
    for ending, kind in (("", "encoder"), ("_sim", "sim"), ("_seq_2_seq", "seq_2_seq")):
        source(kind).save_to_preset(str(root / f"preset{ending}"))
    source("encoder").backbone.save_to_preset(str(root / "preset_backbone"))
    for name, kind, write in (
        ("h5", "tf_model.h5", write_tf_h5),
        ("bin", "pytorch_model.bin", write_torch),
    ):
        folder = root / f"huggingface_{name}"
        shutil.copytree(root / "huggingface", folder)
        write(folder / kind, take_tensors(folder))
        (folder / "SHA256SUMS").unlink()
    for name in ("original", "preset"):
        shutil.make_archive(root / name, "zip", root, name)
    for name in ("huggingface", "preset"):
        hub.add(f"user/{name}", root / name)
    return root


def place(folders, folder):
    """Returns what `from_preset` takes for a row of the table."""
    source = SOURCES.get(folder, folder)
    return source if source.startswith("hf:") else str(folders / source)


def outputs(model, inputs):
    result = model(inputs)
    result = result if isinstance(result, dict) else {"sequence_output": result}
    return {name: keras.ops.convert_to_numpy(value) for name, value in result.items()}


def check_ids(loaded, kind):
    """Checks that a loaded tokenizer or preprocessor gives the ids of the source's."""
    tokenizer = getattr(loaded, "tokenizer", loaded)
    wanted = source(kind).preprocessor.tokenizer
    texts = seq_2_seq.TEXTS if kind == "seq_2_seq" else ["天地玄黄", "宇宙 x"]
    assert tokenizer.get_config() == {**wanted.get_config(), "name": tokenizer.name}
    assert tokenizer.get_vocabulary() == wanted.get_vocabulary()
    if loaded is tokenizer and kind != "encoder":  # the others have the same settings
        assert tokenizer(texts) == wanted(texts)


def check_model(loaded, kind, masking, inputs):
    backbone = getattr(loaded, "backbone", loaded)
    assert backbone.masking == masking
    found, wanted = (outputs(model, inputs) for model in (backbone, reference(kind, masking)))
    for name in found:  # a class without a use for the pooler leaves it out
        np.testing.assert_allclose(found[name], wanted[name], rtol=1e-6, atol=1e-6, err_msg=name)
    if loaded is backbone:
        assert set(found) == set(wanted)
    if hasattr(getattr(loaded, "head", None), "token_embedding"):
        logits = loaded(inputs)
        logits = logits["logits"] if isinstance(logits, dict) else logits
        expected = source(kind).head(wanted["sequence_output"])
        np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-5)


def _slow(folder, name, cell):
    """Other forms of the same files: a few classes are enough for a quick run."""
    is_new = folder in ("huggingface_h5", "huggingface_bin") or folder in SOURCES
    return is_new and name not in ("RoFormerBackbone", "RoFormerMaskedLM", "RoFormerTokenizer")


@pytest.mark.parametrize(
    "folder, name, cell",
    [pytest.param(*c, marks=[pytest.mark.slow] if _slow(*c) else []) for c in CELLS],
)
def test_table(folders, folder, name, cell, rng):
    cls = getattr(roformer_tf, name)
    options = OPTIONS.get(name, {})
    if cell in ERRORS:
        with pytest.raises((ValueError, FileNotFoundError), match=ERRORS[cell].format(name)):
            cls.from_preset(place(folders, folder), **options)
        return
    loaded = cls.from_preset(place(folders, folder), **options)
    assert isinstance(loaded, cls)
    kind = folder.split("_", 1)[1] if "_" in folder else "encoder"
    kind = kind if kind in ("gpt", "sim", "seq_2_seq") else "encoder"
    if cell == "logits" and "Token" not in name and "Preprocessor" not in name:
        inputs = seq_2_seq.inputs(rng)
        model = source(kind) if name.endswith("LM") else source(kind).backbone
        assert_equal(loaded(inputs), model(inputs))
    elif cell in ("ids", "logits"):
        check_ids(loaded, kind)
    else:
        if hasattr(loaded, "preprocessor"):
            check_ids(loaded.preprocessor, kind)
        if folder.startswith("preset") and not isinstance(source(kind), cls):
            # KerasHub takes the backbone of another task's preset, and makes a new head
            loaded = getattr(loaded, "backbone", loaded)
        check_model(loaded, kind, cell, builders.inputs(rng))


def test_every_public_class_is_in_the_table():
    assert sorted(roformer_tf.__all__) == sorted((*ENCODERS, *HEADS, *SIMS, *STRINGS, *SEQ_2_SEQ))


@pytest.mark.parametrize("folder", ROWS)
def test_inspect_knows_every_folder(folders, folder):
    report = inspect_checkpoint(place(folders, folder))
    assert report.layout == folder.split("_")[0]
    if "seq_2_seq" not in folder:
        assert report.complete and report.family == "roformer"
        assert report.masking == ROWS[folder][0]
        assert report.pooler == ("linear" if "sim" in folder else None)
    count = source("seq_2_seq").count_params() if "seq_2_seq" in folder else 0
    if folder in ("preset", "preset_zip", "preset_hub"):
        count = source("encoder").count_params()
    assert not count or report.num_parameters == count


def test_masking_from_the_name_of_a_folder_warns(folders, tmp_path):
    gpt = tmp_path / "chinese_roformer-gpt"
    gpt.mkdir()
    for file in (folders / "original").iterdir():
        if file.name == "SHA256SUMS":
            continue
        content = file.read_bytes()
        if file.name == "bert_config.json":
            content = content.replace(b'  "masking": "bidirectional",\n', b"")
        (gpt / file.name).write_bytes(content)
    with pytest.warns(UserWarning, match="took masking='causal' from the name .* Pass masking="):
        assert roformer_tf.RoFormerBackbone.from_preset(gpt).masking == "causal"
    for masking in ("causal", "bidirectional"):  # any warning is an error here
        backbone = roformer_tf.RoFormerBackbone.from_preset(gpt, masking=masking)
        assert backbone.masking == masking
    options = {"preprocessor": None, "load_weights": False}
    unilm = roformer_tf.RoFormerCausalLM.from_preset(gpt, masking="unilm", **options)
    assert unilm.backbone.masking == "unilm"
    masked_lm = roformer_tf.RoFormerMaskedLM.from_preset(folders / "original_sim", **options)
    assert masked_lm.backbone.pooler is None  # it has no use for one


@pytest.mark.parametrize("name", ["classifier", "masked_lm"])
def test_a_missing_head_is_an_error(name, tmp_path):
    """A head without weights would be random, and nobody would notice."""
    model = builders.task(name, preprocessor={})
    model.save_to_preset(tmp_path)
    (tmp_path / "task.weights.h5").unlink()
    with pytest.raises(FileNotFoundError, match="task.weights.h5 is missing: it was saved with"):
        type(model).from_preset(tmp_path)
    (tmp_path / "SHA256SUMS").unlink()
    with pytest.raises(FileNotFoundError, match="task.weights.h5 is missing. It holds .* the head"):
        type(model).from_preset(tmp_path)
    assert type(model).from_preset(tmp_path, load_weights=False).built
    backbone = roformer_tf.RoFormerBackbone.from_preset(tmp_path)
    assert_equal(backbone.get_weights(), model.backbone.get_weights())
    if name == "classifier":
        new = roformer_tf.RoFormerTextClassifier.from_preset(tmp_path, num_classes=5)
        assert new.num_classes == 5
