"""The Keras layer: inputs of every form, bad input, saving, other backends."""

import json
import os
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

from roformer_tf.text import PairPacker, RoFormerTokenizer

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
VOCABULARY = [*SPECIAL, *"追一科技的ab。", "追一", "科技", "ro", "##former"]


@pytest.fixture
def dictionary(tmp_path):
    path = tmp_path / "dict.txt"
    path.write_text("追一 10\n科技 20\n的 99\n", "utf-8")
    return path


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    path = tmp_path_factory.mktemp("dictionary") / "dict.txt"
    path.write_text("追一 10\n科技 20\n的 99\n", "utf-8")
    return RoFormerTokenizer(VOCABULARY, dictionary=path)


@pytest.fixture(scope="module")
def by_character():
    return RoFormerTokenizer(VOCABULARY, word_level=False)


def tokens_of(tokenizer, ids):
    return [tokenizer.id_to_token(i) for i in ids]


# -- forms of input


def test_every_form_of_strings(tokenizer):
    texts = ["追一科技", "", "roformer的a"]
    expected = [[13, 14], [], [15, 16, 9, 10]]
    for batch in (
        texts,
        tuple(texts),
        [text.encode() for text in texts],
        np.array(texts),
        np.array([text.encode() for text in texts], object),
        tf.constant(texts),
    ):
        assert tokenizer(batch) == expected
        assert tokenizer.tokenize(batch) == expected
    for text in (texts[0], texts[0].encode(), tf.constant(texts[0]), np.array(texts[0])):
        ids = tokenizer(text)
        assert keras.backend.standardize_dtype(ids.dtype) == "int32"
        assert np.asarray(ids).tolist() == expected[0]
    assert tokenizer([["追一", "科技"], ["的"]]) == [[[13], [14]], [[9]]]
    assert tokenizer(tf.constant([["追一", "科技"], ["的", ""]])) == [[[13], [14]], [[9], []]]
    assert tokenizer(tf.ragged.constant([["追一"], [], ["的", "a"]])) == [[[13]], [], [[9], [10]]]
    ids, starts, ends = tokenizer.tokenize_with_offsets([["追一", "科技"], ["的"]])
    assert (ids[1], starts[0], ends[0]) == ([[9]], [[0], [0]], [[2], [2]])
    ids, starts, ends = tokenizer.tokenize_with_offsets("的 RoFormer")
    assert [np.asarray(x).tolist() for x in (ids, starts, ends)] == [
        [9, 15, 16],
        [0, 2, 4],
        [1, 4, 10],
    ]


@pytest.mark.parametrize("wrong", [7, None, [None], ["a", 7], tf.constant([1]), np.array([1.5])])
def test_what_is_no_string(wrong, tokenizer):
    with pytest.raises(TypeError, match="The tokenizer takes strings"):
        tokenizer(wrong)


def test_in_tf_data_and_tf_function(tokenizer):
    texts = ["追一科技", "", "roformer的a", "b"]
    expected = tokenizer(texts)
    data = tf.data.Dataset.from_tensor_slices(texts)
    assert [x.numpy().tolist() for x in data.map(tokenizer)] == expected
    batches = list(data.batch(3).map(tokenizer, num_parallel_calls=2))
    assert [row for batch in batches for row in batch.to_list()] == expected
    assert all(isinstance(batch, tf.RaggedTensor) for batch in batches)
    ragged = tf.function(tokenizer)(tf.constant(texts))
    assert ragged.to_list() == expected
    assert tf.function(tokenizer.detokenize)(ragged).numpy().tolist() == [
        text.encode() for text in tokenizer.detokenize(expected)
    ]
    _, starts, _ = tf.function(tokenizer.tokenize_with_offsets)(tf.constant(texts))
    assert starts.to_list() == [[0, 2], [], [0, 2, 8, 9], [0]]
    ids, _ = tf.function(lambda x: tokenizer.encode(x, x, maxlen=5))(tf.constant(texts))
    assert ids.to_list() == tokenizer.encode(texts, texts, maxlen=5)[0]


def test_sequence_length(dictionary):
    tokenizer = RoFormerTokenizer(
        [*SPECIAL[1:], "[PAD]", "追", "一"], dictionary=dictionary, sequence_length=3
    )
    expected = [[5, 6, 5], [4, 4, 4], [5, 4, 4]]
    assert np.asarray(tokenizer(["追一追一", "", "追"])).tolist() == expected
    assert np.asarray(tokenizer("追")).tolist() == expected[2]
    spec = tf.data.Dataset.from_tensors(["追"]).map(tokenizer).element_spec
    assert spec == tf.TensorSpec([None, 3], tf.int32)


# -- bad input, as the docstring of the class defines it


@pytest.mark.parametrize("mode", ["word", "word_cased", "char", "char_cased"])
def test_invalid_utf8_counts_as_replacement_characters(mode, tokenizers, texts, rng):
    tokenizer = tokenizers(mode)
    broken = []
    for text in texts["hostile"][-600:]:
        data = bytearray(text.encode("utf-8", "surrogatepass"))
        for _ in range(3):
            place = int(rng.integers(len(data) + 1))
            junk = rng.integers(128, 256, rng.integers(1, 4)).astype(np.uint8).tobytes()
            data[place : place + int(rng.integers(3))] = junk
        broken.append(bytes(data))
    replaced = [data.decode("utf-8", "replace") for data in broken]
    assert tokenizer(broken) == tokenizer(replaced)
    assert tokenizer.tokenize_with_offsets(broken) == tokenizer.tokenize_with_offsets(replaced)


@pytest.mark.parametrize(
    ("text", "char", "word"),
    [
        ("", [], []),
        (" \t\n\u3000\xa0\u2028", [], []),
        ("\0\x01\x7f\ufffd\u200b", [], []),
        ("r\0o\u200bformer", ["ro", "##former"], ["[UNK]", "[UNK]", "[UNK]"]),
        ("追\0一", ["追", "一"], ["追", "一"]),
        ("a\u2028b", ["a", "b"], ["a", "b"]),
        ("a\ud83db", ["[UNK]"], ["a", "[UNK]", "b"]),
        ("[MASK]", ["[UNK]"] * 3, ["[UNK]"] * 3),
        ("😀", ["[UNK]"], ["[UNK]"]),
        ("ＲＯ", ["[UNK]"], ["[UNK]"] * 2),
        ("a\u0301\u0302", ["a"], ["a"]),
        ("\u0301", [], []),
        (b"a\xffb", ["[UNK]"], ["a", "b"]),
    ],
)
def test_bad_input(text, char, word, tokenizer, by_character):
    assert tokens_of(by_character, np.asarray(by_character(text))) == char
    assert tokens_of(tokenizer, np.asarray(tokenizer(text))) == word
    ids, starts, ends = tokenizer.tokenize_with_offsets([text])
    assert len(ids[0]) == len(starts[0]) == len(ends[0])


def test_empty_batches(tokenizer):
    for empty in ([], np.array([], object), tf.zeros([0], tf.string)):
        assert tokenizer(empty) == []
        assert tokenizer.tokenize_with_offsets(empty) == ([], [], [])
        assert tokenizer.encode(empty) == ([], [])
    assert tokenizer.detokenize([]) == ""
    assert tokenizer.detokenize([[], []]) == ["", ""]
    assert tokenizer(["", ""]) == [[], []]


def test_a_megabyte(tokenizers, texts):
    """Beside short ones, in one batch: no row takes the space of the longest."""
    long = "".join(texts["real"])[:400_000]
    assert len(long.encode()) > 1_000_000
    tokenizer = tokenizers("word")
    rows = tokenizer([long, *texts["real"][:1000]])
    assert rows[1:] == tokenizer(texts["real"][:1000])
    # cut where no word goes across: it is as long as its parts
    parts = long.replace("，", "，\n").split("\n")
    assert rows[0] == [i for row in tokenizer(parts) for i in row]
    by_character = tokenizers("char")
    assert by_character(["a" * 1_000_000, "我" * 340_000])[0] == [by_character.unk_token_id]


# -- vocabulary and special tokens


def test_special_tokens_are_looked_up(tokenizer):
    names = ["pad", "unk", "start", "end", "mask"]
    assert [getattr(tokenizer, f"{name}_token_id") for name in names] == [0, 1, 2, 3, 4]
    assert sorted(tokenizer.special_token_ids) == [0, 1, 2, 3, 4]
    other = RoFormerTokenizer(
        ["<a>", "<b>", "x", "<c>", "[UNK]"],
        word_level=False,
        pad_token="<c>",
        start_token="<a>",
        end_token="<b>",
        mask_token=None,
    )
    assert [getattr(other, f"{name}_token_id") for name in names] == [3, 4, 0, 1, None]
    assert sorted(other.special_token_ids) == [0, 1, 3, 4]
    assert other.encode(["x y"])[0] == [[0, 2, 4, 1]]
    with pytest.raises(ValueError, match="`unk_token` must be"):
        RoFormerTokenizer(VOCABULARY, word_level=False, unk_token=None)
    with pytest.raises(ValueError, match="int32"):
        RoFormerTokenizer(VOCABULARY, word_level=False, dtype="string")


def test_tokens_and_ids(tokenizer):
    assert tokenizer.get_vocabulary() == VOCABULARY
    assert tokenizer.vocabulary_size() == len(VOCABULARY)
    assert all(tokenizer.token_to_id(tokenizer.id_to_token(i)) == i for i in range(len(VOCABULARY)))
    with pytest.raises(ValueError, match="'x' is not in the vocabulary"):
        tokenizer.token_to_id("x")
    for wrong in (-1, len(VOCABULARY)):
        with pytest.raises(ValueError, match="`id` must be the id of a token"):
            tokenizer.id_to_token(wrong)
        with pytest.raises(tf.errors.InvalidArgumentError, match="token ids must be in"):
            tokenizer.detokenize([5, wrong])


def test_before_the_vocabulary_is_set():
    tokenizer = RoFormerTokenizer()
    for call in (
        lambda: tokenizer("a"),
        lambda: tokenizer.detokenize([1]),
        lambda: tokenizer.tokenize_with_offsets("a"),
        lambda: tokenizer.encode("a"),
        tokenizer.get_vocabulary,
        tokenizer.vocabulary_size,
        lambda: tokenizer.graph,
        lambda: tokenizer.save_assets("."),
    ):
        with pytest.raises(ValueError, match="has no vocabulary yet"):
            call()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"maxlen": -1}, "`maxlen` must be None or"),
        ({"maxlen": 2.5}, "`maxlen` must be None or"),
        ({"truncate_from": "both"}, "`truncate_from` must be"),
        ({"pattern": "S*E"}, "`pattern` must be"),
        ({"second": ["a", "b"]}, "both texts alike"),
    ],
)
def test_encode_errors(arguments, message, tokenizer):
    with pytest.raises(ValueError, match=message):
        tokenizer.encode("a", **arguments)


# -- saving


def test_config_and_assets(dictionary, tmp_path):
    texts = ["追一科技的RoFormer", "追一科"]
    tokenizer = RoFormerTokenizer(
        VOCABULARY, dictionary=dictionary, user_words={"一科": 500}, word_maxlen=9, lowercase=False
    )
    config = json.loads(json.dumps(keras.layers.serialize(tokenizer)))
    again = keras.layers.deserialize(config)
    assert again.get_config() == tokenizer.get_config()
    tokenizer.save_assets(tmp_path)
    assert sorted(tokenizer.file_assets) == sorted(set(os.listdir(tmp_path)) - {"dict.txt"})
    dictionary.unlink()  # its words are in the tables
    again.load_assets(tmp_path)
    assert again(texts) == tokenizer(texts)
    assert again.special_token_ids == tokenizer.special_token_ids
    # another vocabulary, the same dictionary
    again.set_vocabulary([*SPECIAL, "一科", "的"])
    assert again(["的一科"]) == [[6, 5]]
    # tables of another vocabulary are refused
    (tmp_path / "vocabulary.txt").write_text("\n".join([*SPECIAL, "一科"]), "utf-8")
    with pytest.raises(ValueError, match="another vocabulary or configuration .vocabulary_digest"):
        again.load_assets(tmp_path)
    with pytest.raises(ValueError, match="word_level, lowercase, word_maxlen"):
        RoFormerTokenizer(word_level=False).load_assets(tmp_path)
    # a damaged file too
    (tmp_path / "tokenizer_tables.npz").write_bytes(b"PK\3\4 no")
    with pytest.raises(ValueError, match="damaged"):
        again.load_assets(tmp_path)
    # without tables they are made anew
    (tmp_path / "tokenizer_tables.npz").unlink()
    characters = RoFormerTokenizer(word_level=False)
    characters.load_assets(tmp_path)
    assert characters(["追"]) == [[1]]


def test_a_configuration_must_not_name_a_file(tokenizer):
    config = {**tokenizer.get_config(), "vocabulary": "/etc/passwd"}
    with pytest.raises(ValueError, match="must not name a vocabulary file"):
        RoFormerTokenizer.from_config(config)


def test_a_failed_save_leaves_the_old_file(tokenizer, tmp_path, monkeypatch):
    tokenizer.save_assets(tmp_path)
    before = {name: (tmp_path / name).read_bytes() for name in tokenizer.file_assets}

    def fail(file, **arrays):
        file.write(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(np, "savez_compressed", fail)
    with pytest.raises(OSError, match="disk full"):
        tokenizer.save_assets(tmp_path)
    after = {
        name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path) if name in before
    }
    assert after == before
    assert not [name for name in os.listdir(tmp_path) if name not in (*before, "dict.txt")]


@keras.saving.register_keras_serializable(package="tests.text")
class Holder(keras.Model):
    """A model that has a tokenizer."""

    def __init__(self, tokenizer, **kwargs):
        super().__init__(**kwargs)
        self.tokenizer = tokenizer
        self.dense = keras.layers.Dense(2)

    def build(self, input_shape):
        self.dense.build(input_shape)

    def call(self, inputs):
        return self.dense(inputs)

    def get_config(self):
        return {**super().get_config(), "tokenizer": keras.layers.serialize(self.tokenizer)}

    @classmethod
    def from_config(cls, config):
        return cls(**{**config, "tokenizer": keras.layers.deserialize(config["tokenizer"])})


def test_in_a_keras_file(tokenizer, tmp_path):
    model = Holder(tokenizer)
    model(np.zeros([1, 3], np.float32))
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    texts = ["追一科技的RoFormer", ""]
    assert again.tokenizer(texts) == tokenizer(texts)


def test_preset_assets(tokenizer, tmp_path):
    tokenizer.save_to_preset(str(tmp_path))
    config = json.loads((tmp_path / "tokenizer.json").read_text())
    again = keras.layers.deserialize(config)
    again.load_preset_assets(str(tmp_path))
    assert again(["追一科技"]) == tokenizer(["追一科技"])


def test_the_folder_of_an_original_checkpoint(dictionary, tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(VOCABULARY), "utf-8")
    words = RoFormerTokenizer.from_preset(str(tmp_path), dictionary=dictionary)
    assert words.word_level
    assert words(["追一"]) == [[13]]
    (tmp_path / "vocab.txt").write_text("\n".join([*SPECIAL, *"追一", "##追"]), "utf-8")
    characters = RoFormerTokenizer.from_preset(str(tmp_path))
    assert not characters.word_level
    assert characters(["追一"]) == [[5, 6]]


def test_tables_are_kept_on_disk(tmp_path, monkeypatch, dictionary):
    monkeypatch.setattr("roformer_tf.text.tables_cache.SMALL", 0)
    monkeypatch.setenv("ROFORMER_TF_CACHE", str(tmp_path / "cache"))
    expected = RoFormerTokenizer(VOCABULARY, dictionary=dictionary)(["追一科"])
    (file,) = (tmp_path / "cache").iterdir()
    with monkeypatch.context() as patch:  # the second time nothing is built
        patch.setattr("roformer_tf.text.tables_cache.build_tables", None)
        assert RoFormerTokenizer(VOCABULARY, dictionary=dictionary)(["追一科"]) == expected
    # a damaged file is as good as none
    size = file.stat().st_size
    file.write_bytes(b"damaged")
    assert RoFormerTokenizer(VOCABULARY, dictionary=dictionary)(["追一科"]) == expected
    assert file.stat().st_size == size
    # all that changes the result is in the name; only the newest files stay
    for change in (
        {"user_words": ["一科"]},
        {"user_words": ["追一"]},
        {"lowercase": False},
        {"word_maxlen": 5},
        {"vocabulary": [*VOCABULARY, "x"]},
        {"unk_token": "[MASK]"},
    ):
        before = set((tmp_path / "cache").iterdir())
        RoFormerTokenizer(**{"vocabulary": VOCABULARY, "dictionary": dictionary, **change})
        assert len(set((tmp_path / "cache").iterdir()) - before) == 1, change
    for i in range(3):
        dictionary.write_text(f"追一 {i + 1}\n", "utf-8")
        RoFormerTokenizer(VOCABULARY, dictionary=dictionary)
    assert len(list((tmp_path / "cache").iterdir())) == 8
    # a folder that cannot be written to, and none
    (tmp_path / "file").write_text("")
    for no_folder in (tmp_path / "file" / "below", ""):
        monkeypatch.setenv("ROFORMER_TF_CACHE", str(no_folder))
        RoFormerTokenizer(VOCABULARY, dictionary=dictionary)


# -- elsewhere

ONLY_TENSORFLOW = """
import json, sys

# importing one of these raises ImportError from here on
for name in ("keras", "keras_hub", "tf_keras", "tensorflow_text", "jieba", "roformer_tf"):
    sys.modules[name] = None
import tensorflow as tf
module = tf.saved_model.load(sys.argv[1])
with open(sys.argv[2]) as file:
    texts = json.load(file)
ids, segments = [], []
for i in range(0, len(texts), 500):
    outputs = module.pack(tf.constant(texts[i : i + 500]), tf.constant(texts[i : i + 500][::-1]))
    ids += outputs["token_ids"].numpy().tolist()
    segments += outputs["segment_ids"].numpy().tolist()
ragged = module.tokenize(tf.constant(texts))
parts = module.offsets(tf.constant(texts))
with open(sys.argv[3], "w") as file:
    json.dump({
        "ids": ids, "segments": segments, "rows": ragged.to_list(),
        "offsets": [x.to_list() for x in parts],
        "texts": [text.decode() for text in module.detokenize(ragged).numpy()],
    }, file)
"""


class Exported(tf.Module):
    def __init__(self, tokenizer):
        super().__init__()
        self.graph, self.graph_detokenizer = tokenizer.graph, tokenizer.graph_detokenizer
        self._packer = PairPacker(
            tokenizer.start_token_id, tokenizer.end_token_id, tokenizer.pad_token_id, 32
        )

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)] * 2)
    def pack(self, first, second):
        return self._packer((self.graph(first), self.graph(second)))

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def tokenize(self, texts):
        return self.graph(texts)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def offsets(self, texts):
        return self.graph.tokenize_with_offsets(texts)

    @tf.function(input_signature=[tf.RaggedTensorSpec([None, None], tf.int32)])
    def detokenize(self, ids):
        return self.graph_detokenizer(ids)


@pytest.mark.parametrize("mode", ["word", "char"])
def test_a_saved_model_needs_nothing_but_tensorflow(mode, tokenizers, texts, tmp_path):
    sample = texts["real"][::10] + [t for t in texts["hostile"] if t.isprintable()]
    sample = [t for t in sample if not any("\ud800" <= c <= "\udfff" for c in t)]
    tokenizer = tokenizers(mode)
    module = Exported(tokenizer)
    tf.saved_model.save(module, tmp_path / "model")
    (tmp_path / "texts.json").write_text(json.dumps(sample))
    done = subprocess.run(
        [
            *(sys.executable, "-c", ONLY_TENSORFLOW),
            *(tmp_path / "model", tmp_path / "texts.json", tmp_path / "out.json"),
        ],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    answers = json.loads((tmp_path / "out.json").read_text())
    rows, starts, ends = tokenizer.tokenize_with_offsets(sample)
    assert answers["rows"] == rows
    assert answers["offsets"] == [rows, starts, ends]
    assert answers["texts"] == tokenizer.detokenize(tf.ragged.constant(rows, tf.int32))
    ids = []
    for i in range(0, len(sample), 500):
        batch = tf.constant(sample[i : i + 500])
        ids += module.pack(batch, batch[::-1])["token_ids"].numpy().tolist()
    assert answers["ids"] == ids


OTHER_BACKEND = """
import sys
import keras, numpy as np, tensorflow as tf
from tests.text.test_roformer_tokenizer import VOCABULARY
from roformer_tf.text import PairPacker, RoFormerTokenizer

assert keras.backend.backend() == sys.argv[1]
tokenizer = RoFormerTokenizer(VOCABULARY, word_level=False)
assert tokenizer(["追一", ""]) == [[5, 6], []]
ids = tokenizer("追一")
assert keras.ops.is_tensor(ids) and keras.ops.convert_to_numpy(ids).tolist() == [5, 6]
assert tokenizer.detokenize(ids) == "追一"
assert tokenizer.detokenize(keras.ops.convert_to_tensor([[5, 6], [6, 0]])) == ["追一", "一"]
assert tokenizer.encode(["追"])[0] == [[2, 5, 3]]
assert tokenizer.tokenize_with_offsets(["a 追"])[1] == [[0, 2]]
data = tf.data.Dataset.from_tensor_slices(["追一", "a"]).batch(2).map(tokenizer)
assert next(iter(data)).to_list() == [[5, 6], [10]]
packer = PairPacker(2, 3, 0, 6)
assert packer((ids,))["token_ids"].numpy().tolist() == [2, 5, 6, 3, 0, 0]
"""


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_other_backends(backend, repository):
    pytest.importorskip(backend)
    done = subprocess.run(
        [sys.executable, "-c", OTHER_BACKEND, backend],
        capture_output=True,
        text=True,
        cwd=repository,
        env={**os.environ, "KERAS_BACKEND": backend, "PYTHONPATH": str(repository)},
    )
    assert done.returncode == 0, done.stderr[-3000:]
