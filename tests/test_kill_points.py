"""A process that is killed while it saves a model leaves the old one or the new one.

Every change that Python makes to the files of a folder is a point where it could be killed. The
folder is copied before each of them, and every copy must load with the old or the new numbers.
"""

import functools
import hashlib
import json
import resource
import shutil
import signal
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor

import keras
import numpy as np
import pytest
import tensorflow as tf

import roformer_tf
from roformer_tf.checkpoint import convert, save_checkpoint
from roformer_tf.checkpoint.vocabulary import Vocabulary
from roformer_tf.export import export_saved_model
from roformer_tf.pretraining import TrainingCheckpoints
from roformer_tf.text.tokenizer_tables import TokenizerTables, build_tables
from tests.models import seq_2_seq
from tests.models.builders import task, tokenizer

CHANGES = ("os.rename", "os.mkdir", "os.rmdir", "os.remove", "os.link", "os.truncate", "open")
INPUTS = {"token_ids": np.array([[2, 7, 9, 3]])}
TEXT = "天地"


class Recorder:
    """Copies the folder `root` before every change of a file."""

    current = None

    def __init__(self, root, copies):
        self.root, self.copies = root, copies
        self.points = 0
        self.states = {}

    def record(self, event, arguments):
        if event not in CHANGES or (event == "open" and "r" in str(arguments[1])):
            return
        Recorder.current = None  # the copy makes changes, too
        self.points += 1
        key = hashlib.sha256()
        for path in sorted(self.root.rglob("*")):
            name = path.relative_to(self.root)
            if any(part.startswith(".saving-") for part in name.parent.parts):
                continue  # never read: one state, however much of it is written
            key.update(str(name).encode())
            if path.is_file():
                key.update(path.read_bytes())
        if key.digest() not in self.states:
            copy = self.copies / str(len(self.states))
            shutil.copytree(self.root, copy)
            self.states[key.digest()] = copy
        Recorder.current = self

    def __enter__(self):
        Recorder.current = self
        return self

    def __exit__(self, *error):
        self.record("os.rename", ())  # the end
        Recorder.current = None


@pytest.fixture(scope="module", autouse=True)
def hook():
    # A hook stays until the process ends, after the names of this module are gone.
    sys.addaudithook(
        lambda *event, recorder=Recorder: recorder.current and recorder.current.record(*event)
    )


def model(seed, name="classifier"):
    is_translator = name == "translator"
    model = seq_2_seq.translator(num_layers=1) if is_translator else task(name, preprocessor={})
    for weight in model.weights:
        weight.assign(weight.value + seed / 8)
    return model


model_to_save = functools.cache(model)  # saving changes nothing


def from_preset(cls):
    def load(folder):
        return keras.ops.convert_to_numpy(cls.from_preset(folder)(INPUTS))

    return load


def save_preset(seed, name="classifier", part=lambda model: model, **options):
    def save(folder):
        part(model_to_save(seed, name)).save_to_preset(folder, **options)

    return save


def load_translator(folder):
    task = roformer_tf.RoFormerSeq2SeqLM.from_preset(folder)
    ids = np.array([[2, 7, 9, 3]])
    mask = np.ones_like(ids)
    names = "encoder_token_ids", "encoder_padding_mask", "decoder_token_ids", "decoder_padding_mask"
    return keras.ops.convert_to_numpy(task(dict(zip(names, (ids, mask, ids, mask)))))


def save_preprocessor(folder):
    """Replaces the vocabulary of a preset."""
    vocabulary = tokenizer().get_vocabulary()
    own = roformer_tf.RoFormerTokenizer([*vocabulary[:5], *vocabulary[:4:-1]], word_level=False)
    roformer_tf.RoFormerTextClassifierPreprocessor(own).save_to_preset(folder)


def load_tokenizer(folder):
    tokenizer = roformer_tf.RoFormerTokenizer.from_preset(folder)
    config = {**tokenizer.get_config(), "name": None}  # each save numbers them on
    return np.array([*tokenizer.get_vocabulary(), json.dumps(config)])


def save_tables(seed):
    def save(folder):
        folder.mkdir(exist_ok=True)
        vocabulary = Vocabulary(tokenizer().get_vocabulary()[: 40 + seed])
        build_tables(vocabulary, None, True, "[UNK]", 200).save(folder / "tables.npz")

    return save


def load_tables(folder):
    return TokenizerTables.load(folder / "tables.npz").entry_ids


def save_training(seed):
    def save(folder):
        TrainingCheckpoints(folder).save(seed, {"kernel": tf.Variable([1.0 * seed])}, {})

    return save


def load_training(folder):
    kernel = tf.Variable([0.0])
    if TrainingCheckpoints(folder).restore({"kernel": kernel}) is None:
        raise FileNotFoundError(folder)
    return kernel.numpy()


def save_original(seed):
    return lambda folder: save_checkpoint(model_to_save(seed, "masked_lm"), folder)


def save_hugging_face(seed):
    def save(folder):
        with_original = folder.parent.parent / f"original-{seed}"
        save_checkpoint(model_to_save(seed, "masked_lm"), with_original)
        convert(with_original, folder, overwrite=True)

    return save


def save_exported(seed):
    return lambda folder: export_saved_model(model_to_save(seed), folder, overwrite=True)


def load_exported(folder):
    if not folder.exists():
        raise FileNotFoundError(folder)
    answer = tf.saved_model.load(str(folder)).signatures["serving_default"](
        texts=tf.constant([TEXT])
    )
    return answer["logits"].numpy()


def backbone(model):
    return model.backbone


CLASSIFIER = from_preset(roformer_tf.RoFormerTextClassifier)
CAUSAL_LM = from_preset(roformer_tf.RoFormerCausalLM)
MASKED_LM = from_preset(roformer_tf.RoFormerMaskedLM)
BACKBONE = from_preset(roformer_tf.RoFormerBackbone)
SHARD = 6e-6  # GB, several of them for a model
SAVERS = {
    # name: how the old model is saved, how the new one is, how a folder is loaded
    "new preset": (None, save_preset(1), CLASSIFIER),
    "preset": (save_preset(1), save_preset(2), CLASSIFIER),
    "preset of a backbone": (
        save_preset(1, part=backbone),
        save_preset(2, part=backbone),
        BACKBONE,
    ),
    "backbone over a task": (save_preset(1), save_preset(2, part=backbone), BACKBONE),
    "task over a backbone": (save_preset(1, part=backbone), save_preset(2), BACKBONE),
    "task over another": (save_preset(1), save_preset(2, "masked_lm"), BACKBONE),
    "new original folder": (None, save_original(1), MASKED_LM),
    "original folder": (save_original(1), save_original(2), MASKED_LM),
    "Hugging Face folder": (save_hugging_face(1), save_hugging_face(2), MASKED_LM),
    "new SavedModel": (None, save_exported(1), load_exported),
    "SavedModel": (save_exported(1), save_exported(2), load_exported),
    "preset of a GPT in shards": (
        save_preset(1, "causal_lm", max_shard_size=SHARD),
        save_preset(2, "causal_lm", max_shard_size=SHARD),
        CAUSAL_LM,
    ),
    "one file over shards of a translator": (
        save_preset(1, "translator", max_shard_size=SHARD),
        save_preset(2, "translator"),
        load_translator,
    ),
    "preprocessor over a preset": (save_preset(1), save_preprocessor, load_tokenizer),
    "tokenizer's tables": (save_tables(1), save_tables(2), load_tables),
    "training checkpoints": (save_training(1), save_training(2), load_training),
}
CLEANED_BY_A_SAVE = ("tokenizer's tables", "training checkpoints")  # a load does not write there


@pytest.mark.slow
@pytest.mark.parametrize("name", SAVERS)
def test_a_kill_leaves_the_old_or_the_new_model(name, tmp_path):
    save_old, save_new, load = SAVERS[name]
    root, copies = tmp_path / "root", tmp_path / "copies"
    root.mkdir()
    old = None
    if save_old is not None:
        save_old(root / "model")
        (root / "model" / "notes.md").write_text("mine")
        old = load(root / "model")
    with Recorder(root, copies) as recorder:
        save_new(root / "model")
    new = load(root / "model")
    for number, copy in enumerate(recorder.states.values()):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "A process was killed", UserWarning)
            try:
                value = load(copy / "model")
            except FileNotFoundError:
                value = None
        assert _equal(value, old) or _equal(value, new), "neither the old nor the new numbers"
        if old is not None and name != "SavedModel":  # which is replaced as a whole
            assert (copy / "model" / "notes.md").read_text() == "mine"
            if name not in CLEANED_BY_A_SAVE:
                assert not list((copy / "model").glob(".*")), "left behind"
        if number % 5 == 0:
            # The next save removes what the kill left.
            save_new(copy / "model")
            assert _equal(load(copy / "model"), new)
            assert not list(copy.rglob(".*")), "left behind"
    assert len(recorder.states) > 3
    print(f"{name}: {recorder.points} points, {len(recorder.states)} states")


def _equal(one, other):
    return (one is None) == (other is None) and (one is None or np.array_equal(one, other))


@pytest.fixture
def small_files():
    """No file may be larger than 4,096 bytes."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.parametrize(
    "name", ["preset", "original folder", pytest.param("SavedModel", marks=pytest.mark.slow)]
)
def test_a_full_disk_leaves_the_old_model(name, tmp_path, request):
    save_old, save_new, load = SAVERS[name]
    folder = tmp_path / "model"
    save_old(folder)
    old = load(folder)
    request.getfixturevalue("small_files")
    with pytest.raises(OSError, match="The disk is full, or .*Nothing there has changed"):
        save_new(folder)
    assert _equal(load(folder), old)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert not list(folder.glob(".*"))


@pytest.mark.parametrize("exists", [False, True])
def test_writers_at_once(exists, tmp_path):
    """The folder is that of one of them, whole."""
    folder = tmp_path / "model"
    models = [model(seed) for seed in range(4)]
    if exists:
        models[0].save_to_preset(folder)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda model: model.save_to_preset(folder), models))
    found = CLASSIFIER(folder)
    assert sum(_equal(found, keras.ops.convert_to_numpy(model(INPUTS))) for model in models) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["model"] and not list(folder.glob(".*"))


def test_parts_of_a_preset_are_saved_one_by_one(tmp_path):
    """As with KerasHub: a backbone, and then a tokenizer beside it."""
    one, other = model(1), model(2)
    one.save_to_preset(tmp_path)
    other.backbone.save_to_preset(tmp_path)
    assert not list(tmp_path.glob("task*"))
    other.preprocessor.tokenizer.save_to_preset(tmp_path)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {
        "README.md",
        "SHA256SUMS",
        "assets",
        "config.json",
        "metadata.json",
        "model.weights.h5",
        "preprocessor.json",
        "tokenizer.json",
    }
    loaded = roformer_tf.RoFormerTextClassifier.from_preset(tmp_path, num_classes=3)
    assert _equal(
        keras.ops.convert_to_numpy(loaded.backbone(INPUTS)),
        keras.ops.convert_to_numpy(other.backbone(INPUTS)),
    )
    other.preprocessor = None
    other.save_to_preset(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {
        "README.md",
        "SHA256SUMS",
        "config.json",
        "metadata.json",
        "model.weights.h5",
        "task.json",
        "task.weights.h5",
    }


def test_models_that_are_not_overwritten(tmp_path):
    lm = model(1, "masked_lm")
    original, preset, target = (tmp_path / name for name in ("original", "preset", "target"))
    save_checkpoint(lm, original)
    lm.save_to_preset(preset)
    with pytest.raises(FileExistsError, match="holds a model in the original layout"):
        lm.save_to_preset(original)
    with pytest.raises(FileExistsError, match="holds a model in the preset layout"):
        save_checkpoint(lm, preset)
    with pytest.raises(ValueError, match="must be another folder than the source"):
        convert(original, original)
    convert(original, target)
    with pytest.raises(FileExistsError, match="Pass another folder, or `overwrite=True`"):
        convert(original, target)
    with pytest.raises(FileExistsError, match="holds a model in the preset layout"):
        convert(target, preset, overwrite=True)
    convert(original, target, overwrite=True)
    (original / "vocab.txt").write_text("[PAD]\n[UNK]\n")
    with pytest.raises(ValueError, match="which is in the folder already"):
        save_checkpoint(lm.backbone, original)
