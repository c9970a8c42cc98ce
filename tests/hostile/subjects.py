"""What is damaged: models in every kind of folder, how each is loaded, and the right numbers."""

import functools
import random
import shutil
from dataclasses import dataclass
from pathlib import Path

import keras
import numpy as np

import roformer_tf
from roformer_tf.checkpoint import convert, inspect_checkpoint, save_checkpoint
from roformer_tf.cli.shared import load_model
from tests.checkpoint.other_files import take_tensors, write_shards, write_tf_h5, write_torch
from tests.hostile import variants
from tests.hostile.outcomes import outcome_of
from tests.models import builders, seq_2_seq

DIGESTS = "SHA256SUMS"
TEXT = "天地玄黄宇宙"


@dataclass(frozen=True)
class Subject:
    """A folder or file that is damaged.

    Attributes:
        save: Function that writes it to a path.
        load: Function that reads it and returns an array that depends on all of it.
        damage: Function of path and random numbers. Returns what it did.
        signed: bool. Whether digests are kept, so that every change has to be noticed.
    """

    save: callable
    load: callable
    damage: callable = variants.draw
    signed: bool = True


@functools.cache
def model(name):
    if name == "translator":
        return seq_2_seq.translator(num_layers=1)
    return builders.task(name, preprocessor={})


def outputs(model):
    """Returns the numbers of a model for a text."""
    if "encoder_token_ids" in model.input_dtypes:
        inputs = model.preprocessor.generate_preprocess(["a cat and a dog"])
        inputs = {name: np.asarray(value) for name, value in inputs.items()}
    else:
        ids = np.array(model.preprocessor.tokenizer([TEXT, TEXT[::-1]]))
        inputs = {"token_ids": np.pad(ids, ((0, 0), (1, 1)), constant_values=2)}
    return keras.ops.convert_to_numpy(model(inputs))


def save_original(folder):
    save_checkpoint(model("masked_lm"), folder)


def save_hugging_face(folder):
    original = folder.with_name("original")
    save_original(original)
    convert(original, folder)
    shutil.rmtree(original)


def save_shards(folder):
    save_hugging_face(folder)
    write_shards(folder, take_tensors(folder))


def save_torch(folder, old=False):
    save_hugging_face(folder)
    write_torch(folder / "pytorch_model.bin", take_tensors(folder), old)


def save_tf_h5(folder):
    save_hugging_face(folder)
    write_tf_h5(folder / "tf_model.h5", take_tensors(folder))


def save_zip(path):
    folder = path.with_name("chinese_roformer")
    save_original(folder)
    shutil.make_archive(path.with_suffix(""), "zip", path.parent, folder.name)
    shutil.rmtree(folder)


def save_preset(name, **options):
    return lambda folder: model(name).save_to_preset(folder, **options)


def save_archive(name):
    return lambda path: model(name).save(path)


def from_preset(cls):
    return lambda folder: outputs(cls.from_preset(folder))


def load_tokenizer(folder):
    return np.array(roformer_tf.RoFormerTokenizer.from_preset(folder)([TEXT]))


def inspect(folder):
    str(inspect_checkpoint(folder))
    return np.zeros(1)


def load_archive(path):
    return outputs(load_model(str(path))[0])


MASKED_LM = from_preset(roformer_tf.RoFormerMaskedLM)
CLASSIFIER = from_preset(roformer_tf.RoFormerTextClassifier)
SEQ_2_SEQ = from_preset(roformer_tf.RoFormerSeq2SeqLM)
SUBJECTS = {
    "original": Subject(save_original, MASKED_LM),
    "original, no digests": Subject(save_original, MASKED_LM, signed=False),
    "original, inspected": Subject(save_original, inspect, signed=False),
    "Hugging Face": Subject(save_hugging_face, MASKED_LM),
    "Hugging Face, no digests": Subject(save_hugging_face, MASKED_LM, signed=False),
    "Hugging Face, inspected": Subject(save_hugging_face, inspect, signed=False),
    "Hugging Face, shards": Subject(save_shards, MASKED_LM, signed=False),
    "Hugging Face, PyTorch": Subject(save_torch, MASKED_LM, signed=False),
    "Hugging Face, PyTorch before 1.6": Subject(
        lambda folder: save_torch(folder, old=True), MASKED_LM, signed=False
    ),
    "Hugging Face, TensorFlow": Subject(save_tf_h5, MASKED_LM, signed=False),
    ".zip file": Subject(save_zip, MASKED_LM, variants.damaged_archive),
    "preset": Subject(save_preset("classifier"), CLASSIFIER),
    "preset, no digests": Subject(save_preset("classifier"), CLASSIFIER, signed=False),
    "preset, inspected": Subject(save_preset("classifier"), inspect, signed=False),
    "preset, its tokenizer": Subject(save_preset("classifier"), load_tokenizer, signed=False),
    "preset, shards": Subject(
        save_preset("masked_lm", max_shard_size=3e-6), MASKED_LM, signed=False
    ),
    "preset, translation": Subject(save_preset("translator"), SEQ_2_SEQ, signed=False),
    ".keras file": Subject(
        save_archive("classifier"), load_archive, variants.damaged_archive, signed=False
    ),
}


class Cases:
    """Runs cases: damages a copy, loads it, and sorts the outcome."""

    def __init__(self, folder, seed):
        self.folder, self.seed = Path(folder), seed
        self.saved = {}

    def source(self, name):
        """Returns the path of the undamaged subject, and its numbers."""
        if name not in self.saved:
            subject = SUBJECTS[name]
            path = self.folder / f"source-{len(self.saved)}" / "model"
            path = path.with_suffix(name.removesuffix(" file")) if name[0] == "." else path
            path.parent.mkdir()
            subject.save(path)
            if not subject.signed and path.is_dir():
                (path / DIGESTS).unlink(missing_ok=True)
            self.saved[name] = path, subject.load(path)
        return self.saved[name]

    def run(self, subject, case):
        """Returns a dictionary with the outcome of a case."""
        name, number = subject, case
        subject = SUBJECTS[name]
        source, expected = self.source(name)
        copy = self.folder / "copy" / source.name
        shutil.rmtree(copy.parent, ignore_errors=True)
        copy.parent.mkdir()
        (shutil.copytree if source.is_dir() else shutil.copyfile)(source, copy)
        what = subject.damage(copy, random.Random(f"{self.seed} {name} {number}"))
        outcome, detail = outcome_of(lambda: subject.load(copy), expected, copy, subject.signed)
        way = what.split(": ", 1)[-1].split()[0]
        return {
            **{"subject": name, "case": number, "way": way, "what": what},
            "outcome": outcome,
            **detail,
        }
