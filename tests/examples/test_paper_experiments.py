"""The experiments of the paper on made-up texts: small models are pretrained once, and the others start from them."""

import json
import lzma

import numpy as np
import pytest

from tests.examples.conftest import write_lines

WORDS = "the a cat dog house tree sees likes under near big small red old and or not very who when".split()
pytestmark = pytest.mark.slow  # tracing a training step takes seconds, however small the model

SETTINGS = """
[data]
files = ["en_pretrain/*.jsonl"]
held_out = 0.3
packing = "full"
separators = "\\n.?!;, "
chunk_characters = 4.0
window_batches = 4

[model]
vocabulary = "vocab.txt"
word_level = false
num_layers = 1
num_heads = 2
hidden_dim = 16
intermediate_dim = 32
dropout = 0.0
attention_dropout = 0.0

[run]
held_out_batches = 4

[[stages]]
max_length = 16
global_batch_size = 8
steps = 4
learning_rate = 1e-2
"""


def sentences(rng, count):
    return [" ".join(rng.choice(WORDS, rng.integers(4, 9))) + "." for _ in range(count)]


def write_table(path, header, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    with lzma.open(path, "wt", encoding="utf-8") as file:
        file.write("\n".join("\t".join(map(str, row)) for row in (header, *rows)) + "\n")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A folder of datasets like the real ones."""
    folder, rng = tmp_path_factory.mktemp("data"), np.random.default_rng(5)
    texts = [" ".join(sentences(rng, 20)) for _ in range(60)]
    write_lines(folder / "en_pretrain" / "a.jsonl", [{"text": text} for text in texts])
    (folder / "settings.toml").write_text(SETTINGS, encoding="utf-8")
    for part in ("train", "valid"):
        pairs = list(zip(sentences(rng, 24), sentences(rng, 24)))
        glue = folder / "glue"
        write_table(
            glue / "mrpc" / f"{part}.tsv.xz",
            ("label", "sentence1", "sentence2"),
            [(i % 2, *pair) for i, pair in enumerate(pairs)],
        )
        write_table(
            glue / "stsb" / f"{part}.tsv.xz",
            ("score", "genre", "sentence1", "sentence2"),
            [(i / 5, "news", *pair) for i, pair in enumerate(pairs)],
        )
        write_table(
            glue / "sst2" / f"{part}.tsv.xz",
            ("label", "sentence"),
            [(i % 2, pair[0]) for i, pair in enumerate(pairs)],
        )
        documents = [{"label": "xyz"[i % 3], "text": pair[0]} for i, pair in enumerate(pairs)]
        write_lines(folder / "zh_fudan_long" / f"{part}.jsonl.xz", documents)
        triplets = [{"A": a, "B": b, "C": a, "label": "B"} for a, b in pairs[:3]]
        write_lines(folder / "cail2019_scm" / f"{part}.jsonl.xz", triplets)
    return folder


@pytest.fixture(scope="module")
def trained(data, call, tmp_path_factory):
    """`(arguments, folder)` of a comparison of two schemes."""
    folder = tmp_path_factory.mktemp("compare")
    arguments = (
        "--data",
        data,
        "--results",
        folder / "results.jsonl",
        "--output",
        folder / "output",
    )
    arguments += ("--settings", data / "settings.toml", "--seeds", 0)
    call("compare_positions", *arguments, "--schemes", "rotary", "t5", VOCABULARY_SIZE=120)
    return arguments, folder


def read_records(path):
    """The records of a results file by name."""
    records = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return {record["name"]: record for record in records}


def test_schemes_are_compared(trained):
    _, folder = trained
    names = {"results.jsonl", "results.md", "results.png", "results_all.png", "output"}
    assert {path.name for path in folder.iterdir()} == names
    records = read_records(folder / "results.jsonl")
    assert set(records) == {"rotary-0", "t5-0"}
    for record in records.values():
        result = record["result"]
        assert result["training"]["step"] == result["held_out"]["step"] == [1, 2, 3, 4]
        # the last look and the final figures use the same model and batches here
        assert result["held_out"]["loss"][-1] == pytest.approx(result["final"]["loss"], rel=1e-4)
        assert result["training"]["loss"][-1] < result["training"]["loss"][0]
    # both schemes of a seed see the same batches
    assert records["t5-0"]["result"]["tokens"] == records["rotary-0"]["result"]["tokens"]
    report = (folder / "results.md").read_text(encoding="utf-8")
    assert report.count("| T5 bias | 8 | ") == report.count("| RoFormer: rotary | 16 | ") == 1


def test_a_finished_comparison_is_not_repeated(trained, call, capsys):
    arguments, folder = trained
    call("compare_positions", *arguments, "--schemes", "rotary", "t5")
    assert "..." not in capsys.readouterr().out

    # nor is the training, where only the result is lost
    path, log = folder / "results.jsonl", folder / "output" / "rotary-0" / "log.csv"
    before, written = read_records(path)["rotary-0"]["result"], log.stat().st_mtime_ns
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    path.write_text("".join(line for line in lines if "rotary-0" not in line), encoding="utf-8")
    call("compare_positions", *arguments, "--schemes", "rotary")
    assert log.stat().st_mtime_ns == written
    again = read_records(path)["rotary-0"]["result"]
    assert again["final"] == pytest.approx(before["final"])
    assert again["held_out"] == before["held_out"]


def test_glue(trained, data, call, capsys, tmp_path):
    output = trained[1] / "output"
    small = ("max_train=16", "epochs=1", "batch_size=8", "sequence_length=16")
    results = tmp_path / "glue.jsonl"
    arguments = ("--data", data, "--results", results, "--seeds", 0, "--learning-rates", "2e-5")
    bert = f"BERT={output}/t5-{{seed}}/stage-1-16"  # any model will do
    roformer = f"RoFormer={output}/rotary-{{seed}}/stage-1-16"
    first = (*arguments, "--models", bert, "--tasks", "mrpc", "--set", *small)
    call("finetune_glue", *first)
    call(
        "finetune_glue",
        *(*arguments[:-1], "1e-2", "--models", roformer, "--tasks", "stsb", "--set", *small),
    )
    capsys.readouterr()
    example = call("finetune_glue", *first)
    assert "..." not in capsys.readouterr().out
    records = read_records(results)
    assert len(records) == 2
    record = records["RoFormer-stsb-0.01-0"]
    assert record["result"]["measure"] == "Spearman"
    assert -100 <= record["result"]["value"] <= 100 and record["result"]["train"] == 16
    report = (tmp_path / "glue.md").read_text(encoding="utf-8")
    assert "| BERT, the paper | 88.9 | 85.8 |" in report
    assert "| best constant answer | 66.7 | 0.0 |" in report
    assert "RoFormer, best rate of 0.01" in report

    # nothing is left of one run in the next
    stsb = example.load_task(data, "stsb", 16)
    fine_tuning = example.FineTuning("stsb", stsb, record["settings"])
    folder = roformer.split("=")[1].format(seed=0)
    other, again = (fine_tuning.run(folder, 1e-2, seed)["training_loss"] for seed in (1, 0))
    assert again == pytest.approx(record["result"]["training_loss"], abs=1e-4) and again != other

    task = example.TASKS["mrpc"]
    outputs = np.array([[0.0, 1.0], [0.0, 1.0], [1.0, 0.0], [1.0, 0.0]])
    assert example.measure(task, outputs, np.array([1, 0, 1, 0])) == pytest.approx(50)
    ranks = np.array([[0.1], [0.5], [0.3], [9.0]])
    assert example.measure(example.TASKS["stsb"], ranks, np.array([1, 3, 2, 4])) == 100
    assert example.measure(example.TASKS["stsb"], 0 * ranks, np.array([1, 3, 2, 4])) == 0


@pytest.mark.eager  # a few batches of each length
def test_longer_texts_than_trained_on(trained, data, call, tmp_path):
    folder = trained[1]
    small = ("trained_length=16", "most_times=2", "windows=3", "batch_tokens=64")
    results = tmp_path / "lengths.jsonl"
    arguments = ("--data", data, "--settings", data / "settings.toml", "--results", results)
    arguments += ("--output", folder / "output", "--seeds", 0)
    arguments += ("--models", f"{folder}/output/rotary-{{seed}}/stage-1-16", "--set", *small)
    example = call("length_extrapolation", *arguments, "--rules", "none", "yarn")
    records = list(read_records(results).values())
    assert len(records) == 2
    losses = {record["settings"]["rule"]: record["result"]["loss"] for record in records}
    for record in records:
        assert record["result"]["length"] == [16, 32]
        assert record["result"]["predicted"] == records[0]["result"]["predicted"] > 10
    for loss in losses.values():  # up to the trained length nothing changes
        assert loss[0] == losses["none"][0]
    trained_at = {"original_max_position_embeddings": 128}
    for rule, config in {
        "none": None,
        "linear": {"rope_type": "linear", "factor": 4.0},
        "ntk": {"rope_type": "ntk", "factor": 4.0},
        "dynamic": {"rope_type": "dynamic", "factor": 1.0, **trained_at},
        "yarn": {"rope_type": "yarn", "factor": 4.0, **trained_at},
    }.items():
        assert example.scaling(rule, 4, 128) == config and example.scaling(rule, 1, 128) is None
    assert "| YaRN |" in (tmp_path / "lengths.md").read_text(encoding="utf-8")

    # the same tokens are predicted whatever the length of the sequences
    settings = {**example.SETTINGS, "trained_length": 16, "most_times": 4, "windows": 3}
    corpus, tokenizer = example.load_texts(
        example.load_settings(data / "settings.toml", data, folder / "output")
    )
    windows = example.masked_windows(corpus, tokenizer, settings)
    for times in (1, 2, 4):
        found = []
        for batch in example.batches(windows, times, tokenizer, settings):
            assert batch["token_ids"].shape[1] == 14 * times + 2
            assert (batch["token_ids"][:, 0] == tokenizer.start_token_id).all()
            used = batch["label_weights"] > 0
            hidden = np.take_along_axis(batch["token_ids"], batch["mask_positions"], 1)
            found += list(zip(hidden[used], batch["labels"][used]))
        tokens, labels, predicted = windows
        assert sorted(found) == sorted(zip(tokens[predicted], labels[predicted]))


@pytest.mark.eager  # a few steps
def test_long_documents(trained, data, call, capsys, tmp_path):
    model = trained[1] / "output" / "rotary-0" / "stage-1-16"
    results = tmp_path / "long.jsonl"
    arguments = ("--data", data, "--results", results, "--model", model, "--seeds", 0)
    arguments += ("--lengths", 8, "--set", "fudan_epochs=1", "scm_epochs=1")
    call("finetune_long", *arguments)
    records = read_records(results)
    assert set(records) == {"fudan-8-0", "scm-8-0"}
    result = records["scm-8-0"]["result"]
    assert result["cut"] == 1.0 and result["measured_on"] == 3 and len(result["curve"]) == 2
    report = (tmp_path / "long.md").read_text(encoding="utf-8")
    assert "| RoFormer-1024 | 66.07 | 69.79 |" in report
    capsys.readouterr()
    call("finetune_long", *arguments)
    assert "..." not in capsys.readouterr().out


def test_missing_texts_are_named(call, tmp_path):
    settings = tmp_path / "settings.toml"
    settings.write_text(SETTINGS, encoding="utf-8")
    arguments = (
        "--data",
        tmp_path / "none",
        "--results",
        tmp_path / "a.jsonl",
        "--settings",
        settings,
    )
    with pytest.raises(SystemExit, match="--data must name the folder that holds en_pretrain"):
        call("compare_positions", *arguments, "--output", tmp_path)
    with pytest.raises(SystemExit, match="There is no .*glue.*--data must name"):
        call("finetune_glue", *arguments[:4])
    with pytest.raises(SystemExit, match="There is no .*zh_fudan_long.*--data must name"):
        call("finetune_long", *arguments[:4])
