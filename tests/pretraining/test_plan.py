"""The plan of a run: sizes and work against the model itself, memory against measured peaks."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.profiler import model_analyzer, option_builder

from benchmarks.pretraining_memory import measure, predict
from roformer_tf.__main__ import main
from roformer_tf.pretraining import ModelSizes, PretrainingSettings, plan_run
from roformer_tf.pretraining.memory import memory_bytes, optimizer_bytes
from roformer_tf.pretraining.models import make_optimizer, make_task
from roformer_tf.pretraining.plan import MARGIN, choose_slices, predicted_positions
from roformer_tf.pretraining.settings import (
    DataSettings,
    ModelSettings,
    OptimizerSettings,
    RunSettings,
)

VOCABULARY_SIZE = 90
SMALL = {
    "vocabulary": "-",
    "num_layers": 2,
    "num_heads": 2,
    "hidden_dim": 16,
    "intermediate_dim": 24,
}
V2 = {"norm": "rms_norm", "activation": "relu"}
KINDS = {
    "v1": {},
    "v2": V2,
    "factorised": {"embedding_dim": 8},
    "v2_factorised": {**V2, "embedding_dim": 8},
    "learned": {"position_scheme": "learned"},
    "learned_factorised": {"position_scheme": "learned", "embedding_dim": 8},
    "relative": {"position_scheme": "sinusoidal_relative"},
}


def make_settings(stages=None, **tables):
    stage = {"max_length": 128, "global_batch_size": 96, "steps": 10, "learning_rate": 1e-4}
    tables.setdefault("model", {"vocabulary": "-"})
    return PretrainingSettings.from_dict(
        {
            "data": {"files": ["-"], **tables.pop("data", {})},
            "stages": [{**stage, **changed} for changed in stages or [{}]],
            **tables,
        }
    )


def sizes_and_task(kind, **changes):
    settings = ModelSettings(**{**SMALL, **KINDS[kind], **changes})
    task = make_task(settings, "masked_lm", VOCABULARY_SIZE, 32)
    values = {k: v for k, v in dataclasses.asdict(settings).items() if k in _names()}
    values["max_sequence_length"] = 32
    return ModelSizes(VOCABULARY_SIZE, **values), task


def _names():
    return {field.name for field in dataclasses.fields(ModelSizes)}


@pytest.mark.parametrize("kind", KINDS)
def test_parameters_are_those_of_the_model(kind):
    sizes, task = sizes_and_task(kind)
    assert sizes.num_parameters == task.count_params()
    assert sorted(sizes.weight_shapes) == sorted(tuple(w.shape) for w in task.trainable_weights)


@pytest.mark.parametrize("name", ["adamw", "original_adamw", "lamb", "adafactor"])
def test_optimizer_bytes_are_those_of_its_variables(name):
    sizes, task = sizes_and_task("v1")
    optimizer = make_optimizer(OptimizerSettings(name=name), 1e-3)
    optimizer.build(task.trainable_weights)
    arrays = [v for v in optimizer.variables if len(v.shape)]
    assert optimizer_bytes(sizes, name) == sum(4 * int(np.prod(v.shape)) for v in arrays)


@pytest.mark.parametrize("kind", KINDS)
def test_flops_are_those_of_the_graph(kind):
    rows, length, predicted = 3, 12, 4
    sizes, task = sizes_and_task(kind)
    ids = tf.TensorSpec((rows, length), tf.int32)
    inputs = dict.fromkeys(("token_ids", "segment_ids", "padding_mask"), ids)
    inputs["mask_positions"] = tf.TensorSpec((rows, predicted), tf.int32)

    function = tf.function(lambda inputs: task(inputs)).get_concrete_function(inputs)
    assert sizes.forward_flops(rows, length, rows * predicted) == _products(function.graph)


def test_flops_of_a_step_are_those_of_the_graph():
    """Forward and backward, with all positions in the head; TensorFlow's own profiler agrees on the dense products."""
    rows, length = 3, 12
    sizes, task = sizes_and_task("v1", dropout=0.0, attention_dropout=0.0)
    ids = tf.TensorSpec((rows, length), tf.int32)

    @tf.function
    def step(inputs):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(task(inputs) ** 2)
        return tape.gradient(loss, task.trainable_weights)

    inputs = dict.fromkeys(("token_ids", "segment_ids", "padding_mask"), ids)
    graph = step.get_concrete_function(inputs).graph
    assert sizes.step_flops(rows, length, rows * length) == _products(graph)
    assert sizes.step_flops(rows, length, 0, recompute=True) - sizes.step_flops(
        rows, length, 0
    ) == sizes.block_flops(rows, length)

    options = option_builder.ProfileOptionBuilder.float_operation()
    options = option_builder.ProfileOptionBuilder(options)
    options = options.with_node_names(show_name_regexes=[".*"]).with_empty_output().build()
    dense = [op for op in graph.get_operations() if op.type == "MatMul"]
    only = {op.name for op in dense}
    profile = model_analyzer.profile(graph, options=options)
    counted = {child.name: child.float_ops for child in _descendants(profile)}
    assert sum(counted[name] for name in only if name in counted) == _products(graph, ("MatMul",))


def _products(graph, types=("MatMul", "BatchMatMulV2")):
    total = 0
    for op in graph.get_operations():
        if op.type in types:
            first, second = (tensor.shape.as_list() for tensor in op.inputs)
            transposed = op.get_attr("transpose_a" if op.type == "MatMul" else "adj_x")
            inner = first[-2] if transposed else first[-1]
            assert None not in first + second
            total += 2 * inner * int(np.prod(op.outputs[0].shape.as_list()))
    return total


def _descendants(node):
    for child in node.children:
        yield child
        yield from _descendants(child)


def test_flops_by_hand():
    sizes = ModelSizes(
        vocabulary_size=10, num_layers=1, num_heads=1, hidden_dim=4, intermediate_dim=8
    )
    # queries, keys, values 4 x 12, output 4 x 4, feed-forward 4 x 8 and 8 x 4; scores and averages over 3 places
    blocks = 2 * (4 * 12 + 4 * 4 + 4 * 8 + 8 * 4 + 3 * 4 + 3 * 4) * 3
    head = 2 * (4 * 4 + 4 * 10)
    assert sizes.forward_flops(rows=1, length=3, predicted=1) == blocks + head
    assert sizes.step_flops(1, 3, 1, recompute=True) == 3 * (blocks + head) + blocks


def test_slices_divide_the_rows_evenly_and_more_memory_means_fewer():
    sizes = []
    for memory in (5, 6, 8, 12, 16, 24, 32, 64, 1000):
        [plan] = plan_run(make_settings(), 2, memory=f"{memory}GB", vocabulary_size=50_000)
        assert plan.micro_batch_size * plan.slices == 48
        assert plan.memory.peak <= (1 - MARGIN) * memory * 1e9
        sizes.append(plan.micro_batch_size)
    assert sizes == sorted(sizes) and len(set(sizes)) > 3 and sizes[-1] == 48


def test_peak_grows_with_the_rows_and_shrinks_with_recomputation():
    settings = make_settings(), make_settings(run={"recompute": True})
    for memory in ("5GB", "16GB"):
        kept, recomputed = (
            plan_run(s, 2, memory=memory, vocabulary_size=50_000)[0] for s in settings
        )
        assert recomputed.micro_batch_size >= kept.micro_batch_size
        assert recomputed.flops_per_step > kept.flops_per_step


def test_choose_slices_reads_the_vocabulary(tmp_path):
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text("".join(f"token{i}\n" for i in range(50_000)))
    settings = make_settings(model={"vocabulary": str(vocabulary)}, run={"memory": "6GB"})
    [plan] = plan_run(settings, 2, vocabulary_size=50_000)
    assert choose_slices(settings, settings.stages[0], 2) == plan.slices > 1


def test_choose_slices_without_memory():
    settings = make_settings()
    assert choose_slices(settings, settings.stages[0], 2) == 1
    settings = make_settings(run={"micro_batch_size": 20})
    assert choose_slices(settings, settings.stages[0], 2) == 3


def test_errors_say_how_to_mend():
    with pytest.raises(
        ValueError, match=r"one row of 128 tokens.*run.recompute = true.*mixed_float16"
    ):
        plan_run(make_settings(), 2, memory="1GB", vocabulary_size=50_000)
    settings = make_settings(
        run={"recompute": True}, model={"vocabulary": "-", "dtype": "mixed_float16"}
    )
    with pytest.raises(ValueError, match=r"It helps: `optimizer.name = 'adafactor'`, shorter rows"):
        plan_run(settings, 2, memory="1GB", vocabulary_size=50_000)
    with pytest.raises(ValueError, match=r"stages\[0\] must be a multiple of .* replicas, 7"):
        plan_run(make_settings(), 7, vocabulary_size=50_000)
    with pytest.raises(FileNotFoundError):
        plan_run(make_settings(), 2)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("32GB", 32 * 10**9),
        ("16GiB", 2**34),
        ("1.5 gb", 15 * 10**8),
        ("800MB", 8 * 10**8),
        (1000, 1000),
    ],
)
def test_memory_bytes(text, number):
    assert memory_bytes(text) == number


@pytest.mark.parametrize("text", ["", "much", "-3GB", "0GB", "32XB", "GB", "3iB", True])
def test_settings_refuse_what_is_no_memory(text):
    with pytest.raises(ValueError, match="'32GB' or '16GiB'"):
        RunSettings(memory=text)


def test_settings_refuse_memory_beside_a_micro_batch():
    with pytest.raises(ValueError, match="give one of the two"):
        RunSettings(memory="32GB", micro_batch_size=4)


def test_predicted_positions():
    def positions(most=False, **data):
        return predicted_positions(DataSettings(files=("-",), **data), 4, 100, most=most)

    assert positions() == 60 and positions(objective="causal_lm") == 400
    assert positions(objective="unilm") == 200 and positions(objective="unilm", most=True) == 400
    drawn = np.random.default_rng(0).binomial(400, 0.15, 10_000)
    assert positions(most=True) >= drawn.max() and positions(most=True) < 2 * 60
    assert positions(most=True, whole_word=True) > positions(most=True)


def test_command(tmp_path, capsys):
    path = tmp_path / "stages.toml"
    path.write_text(
        '[data]\nfiles = ["x"]\n[model]\nvocabulary = "v"\n[run]\nmicro_batch_size = 4\n'
        "[[stages]]\nmax_length = 512\nglobal_batch_size = 256\nsteps = 100\nlearning_rate = 1e-5\n"
    )
    options = ["--gpus", "4", "--memory", "32GB", "--vocabulary-size", "50000", "--flops", "15e12"]
    assert main(["plan", str(path), *options]) == 0
    printed = capsys.readouterr().out
    sizes = ModelSizes(50_000)
    flops = sizes.step_flops(256, 512, round(0.15 * 256 * 512))
    assert f"{flops:.3e}" in printed and f"{100 * flops / 60e12 / 60:.1f} min" in printed
    assert "0.50 GB" in printed and "peak" in printed and "15% is left free" in printed

    assert main(["plan", str(path), "--memory", "2GB", "--vocabulary-size", "50000"]) == 2
    assert "Not even one row" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [
        {"rows": 32, "length": 128, "slices": 2, "recompute": True},
        {"num_layers": 1, "rows": 4, "vocabulary_size": 40_000, "optimizer": "lamb"},
    ],
    ids=["slices_recompute", "large_table"],
)
def test_predicted_memory_is_the_measured_peak(case):
    try:
        measured = measure(case)
    except RuntimeError as error:
        if "Allocator stats not available" in str(error):
            pytest.skip("TensorFlow's allocator counts on a CPU with oneDNN only")
        raise
    assert predict(case).peak == pytest.approx(measured, rel=0.15)
