"""Numbers of layers and models on any Keras backend. As a program it writes them to a file.

The program checks the tokenizer, too: a process with another backend takes seconds to start.

`KERAS_BACKEND=jax python -m tests.models.backend_results numbers.npz`
"""

import sys

import keras
import numpy as np

from roformer_tf import (
    RoFormerMultipleChoice,
    RoFormerQuestionAnswering,
    RoFormerTokenClassifier,
    rotary,
)
from roformer_tf.optimizers import OriginalAdamW, PiecewiseLinear
from roformer_tf.samplers import BeamSearchSampler
from tests.layers.cases import CASES
from tests.layers.harness import (
    compiled,
    flat,
    float_inputs,
    gradients,
    numpy,
    one_program,
    variables,
)
from tests.models.builders import backbone, data, hidden_states, inputs, randomized, task
from tests.samplers import table_model

# The backbones have more: embeddings, norms, rotary attention and blocks.
LAYERS = (
    "token_embedding_reversed",
    "attention_relative_padded",
    "attention_nezha_padded_given",
    "attention_transformer_xl_padded",
    "attention_transformer_xl_causal_given",
    "attention_t5_padded_given",
    "attention_tupe_untied_causal_given",
    "attention_deberta_padded",
    "attention_rotary_partial_on_values_yarn",
    "rotary_learned",
    "rotary_dynamic_given",
    "decoder_block",
    "linear_elu_rotary",
    "linear_cosine_causal",
    "mean_pooling",
    "head_of_positions",
)
BACKBONES = ("sim", "v2_factorised")
POSITIONS = np.array([0, 1, 2.5, -7, 65_536, 999_999, 1_000_000, 2**24])


def outputs_and_gradients(function, names, tensors, layer, like):
    """Returns outputs and gradients by name, in a random direction of outputs `like` these."""
    rng = np.random.default_rng(1)
    cotangents = [rng.normal(size=x.shape).astype("float32") for x in like]
    outputs, found = gradients(function, tensors, cotangents, layer)
    paths = {id(w): path for path, w in variables(layer).items()}
    keys = [*names, *(paths[id(w)] for w in layer.trainable_variables)]
    return {
        **{f"output{i}": x for i, x in enumerate(outputs)},
        **{f"gradient {key}": g for key, g in zip(keys, found, strict=True)},
    }


def layer_results(case):
    """Outputs and gradients in float32, outputs in mixed_bfloat16."""
    layer = case.layer()
    names = [n for n in float_inputs(case.inputs) if n not in ("attention_bias", "position_ids")]

    def function(*tensors):
        given = {**case.inputs, **dict(zip(names, tensors, strict=True))}
        return keras.tree.flatten(layer(**given, **case.constants))

    tensors = [case.inputs[n] for n in names]
    results = outputs_and_gradients(function, names, tensors, layer, case.expected(layer))
    half = case.layer(dtype="mixed_bfloat16")
    outputs = compiled(lambda given: half(**given, **case.constants))(case.inputs)
    return {**results, "bfloat16": flat(outputs)[0]}


def backbone_results(kind):
    model, half = backbone(kind), backbone(kind, dtype="mixed_bfloat16")
    given = inputs(np.random.default_rng(2))
    given["position_ids"] = np.sort(np.random.default_rng(3).uniform(-9, 1e5, size=(3, 9)))
    given["position_ids"] = given["position_ids"].astype("float32")

    def function():
        return keras.tree.flatten(model(given))

    like = flat(hidden_states(model, given))
    results = outputs_and_gradients(function, [], [], model, like)
    return {**results, "bfloat16": flat(compiled(lambda x: half(x))(given))[0]}


def training_results(name, dtype):
    """Predictions and weights after three steps of `fit` with AdamW."""
    model = task(name, dtype=dtype)
    x, y, weights = data(name, np.random.default_rng(5), batch=12)
    model.compile(
        # an epsilon that keeps the step of a tiny gradient from depending on its noise
        keras.optimizers.AdamW(1e-2, weight_decay=0.01, epsilon=1e-3),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    model.fit(x, y, weights, batch_size=4, shuffle=False, verbose=0)
    results = {f"weight {path}": numpy(w.value) for path, w in variables(model).items()}
    return {**results, "prediction": np.asarray(model.predict(x, verbose=0), "float32")}


def answer_results(model, y, given=None):
    """The loss of the answers to sequences of which some have padding, and its gradients."""
    given = inputs(np.random.default_rng(6)) if given is None else given
    scores = numpy(one_program(randomized(model))(given))

    def loss(y, scores):
        return keras.ops.mean(model.default_loss()(y, scores))

    _, [gradient] = gradients(lambda scores: loss(y, scores), [scores], np.float32(1))
    # without a compiler, which makes a selection of a product with 0 and 1
    return {"loss": numpy(loss(y, scores)), "gradient": gradient}


def optimizer_results():
    """Weights after micro-steps of the original's optimizer, which differs by backend."""
    rng = np.random.default_rng(7)
    weights = [keras.Variable(rng.normal(size=(4, 3)), name=name) for name in ("kernel", "bias")]
    optimizer = OriginalAdamW(PiecewiseLinear(1e-2, {3: 1.0}), accumulation_steps=2)
    optimizer.build(weights)
    for _ in range(7):
        gradients = [rng.normal(size=(4, 3)).astype("float32") for _ in weights]
        optimizer.apply([keras.ops.convert_to_tensor(g) for g in gradients])
    return {weight.name: numpy(weight.value) for weight in weights}


def beam_results():
    """Texts and scores of beam search over a table, for prompts of different lengths."""
    lengths, length = (1, 3), 5
    tables = table_model.make_tables(np.random.default_rng(8), 2, 4, length)
    prompt, mask = table_model.make_prompt(lengths, length)
    sampler = BeamSearchSampler(3, return_all_beams=True)
    next = table_model.step(tables, mask)
    found = sampler(next, prompt, index=1, mask=mask, stop_token_ids=[3])
    return dict(zip(("texts", "scores"), flat(found), strict=True))


def generation_results(name, sampler):
    """Tokens that continue prompts of different lengths."""
    model = task(name, num_layers=2)
    model.compile(sampler=sampler)
    ids = np.random.default_rng(4).integers(5, 48, size=(2, 9)).astype("int32")
    mask = (np.arange(9) < [[2], [5]]).astype("int32")
    return model.generate({"token_ids": ids * mask, "padding_mask": mask}, stop_token_ids=[9])


def all_results():
    angles = numpy(rotary.angles(POSITIONS, rotary.frequencies(64)))
    results = {"rotary/cos": np.cos(angles), "rotary/sin": np.sin(angles)}
    results |= {f"optimizer/{name}": value for name, value in optimizer_results().items()}
    results |= {f"beams/{name}": value for name, value in beam_results().items()}
    for case in CASES:
        if case.name in LAYERS:
            results |= {f"{case.name}/{k}": v for k, v in layer_results(case).items()}
    for kind in BACKBONES:
        results |= {f"backbone {kind}/{k}": v for k, v in backbone_results(kind).items()}
    for name, dtype in (("masked_lm", None), ("classifier_mean", "mixed_bfloat16")):
        trained = training_results(name, dtype)
        results |= {f"trained {name} {dtype or ''}/{k}": v for k, v in trained.items()}
    entities = np.array([[[1, 2, 0], [4, 4, 2]], [[3, 5, 1], [-1, -1, -1]], [[-1] * 3] * 2])
    for head in ("global_pointer", "crf", "softmax"):
        model = RoFormerTokenClassifier(backbone(), ["a", "b", "c"], head=head, head_dim=8)
        results |= {f"entities {head}/{k}": v for k, v in answer_results(model, entities).items()}
    for head in ("joint", "separate"):
        model = RoFormerQuestionAnswering(backbone(), head=head, head_dim=8)
        found = answer_results(model, np.array([[1, 4], [2, 2], [0, 0]]))
        results |= {f"answers {head}/{k}": v for k, v in found.items()}
    choices = RoFormerMultipleChoice(backbone(), dropout=0.0)
    given = {name: x[:, None] for name, x in inputs(np.random.default_rng(9)).items()}
    given = {name: np.concatenate([x, x[::-1], 0 * x], axis=1) for name, x in given.items()}
    found = answer_results(choices, np.array([1, 0, 1]), given)
    results |= {f"choices/{k}": v for k, v in found.items()}
    for name, sampler in (("causal_lm", "greedy"), ("causal_lm_sim", "beam")):
        generated = generation_results(name, sampler)
        results |= {f"generated {name}/{k}": v for k, v in generated.items()}
    return results


if __name__ == "__main__":
    from tests.text import on_any_backend

    on_any_backend.check()
    np.savez(sys.argv[1], **all_results(), backend=np.array(keras.backend.backend()))
