"""Wrong inputs for every public method: each gives an answer or an error that says what is wrong."""

import functools

import keras
import numpy as np
import tensorflow as tf

import roformer_tf
from roformer_tf.models import fill_mask, translate
from tests.hostile.answers import answer_cases, on_texts
from tests.hostile.outcomes import outcome_of
from tests.models import builders, seq_2_seq

TEXTS = ["天地", "玄黄宇"]
NAN = float("nan")


def odd_texts():
    """Creates texts of wrong or unusual forms, by name. Generators serve one use only."""
    return {
        "None": None, "a number": 3, "NaN": NAN, "bytes": b"\xe5\xa4\xa9", "bad bytes": b"\xff\xfe",
        "bytes in a list": [b"\xe5\xa4\xa9", b"\xff"], "an empty list": [], "an empty tuple": (),
        "an empty string": "", "a list of an empty string": [""], "a list of None": [None, "天"],
        "a list of numbers": [1, 2], "mixed": ["天", 3], "nested": [["天", "地"], ["玄"]],
        "a nested empty list": [[]], "a surrogate": ["\ud83d", "天"], "null": ["\0", "天\0地"],
        "ragged": tf.ragged.constant([["天"], ["地", "玄"]]), "an empty tensor": tf.constant([], tf.string),
        "a tensor of numbers": tf.constant([1, 2]), "an empty array": np.array([], object),
        "an array of None": np.array([None, None]), "an array of floats": np.zeros((2, 3)),
        "an array (2, 1)": np.array([["天"], ["地"]]), "a set": {"天", "地"}, "a dict": {"a": "天"},
        "a generator of numbers": (i for i in range(3)), "an object": object(), "a pair": (["天"], ["地"]),
        "a pair of two lengths": (["天", "地"], ["玄"]), "three columns": (["天"], ["地"], ["玄"]),
        "True": True, "a long string": ["天" * 5000], "a pair with None": (["天"], None),
        "a range": range(3), "a type": str, "a dataset": tf.data.Dataset.from_tensor_slices([1, 2]),
        "an empty dataset": tf.data.Dataset.from_tensor_slices(tf.constant([], tf.string)).batch(2),
    }  # fmt: skip


LABELS = {
    "missing": None, "strings": ["good", "bad"], "one-hot": [[1, 0, 0], [0, 1, 0]], "floats": [0.5, 1.5],
    "NaN": [NAN, 0.0], "too high": [0, 9], "negative": [-1, 0], "too few": [0], "too many": [0, 1, 2],
    "None in them": [None, 1], "nested": [[[0]], [[1]]], "ragged": [[0], [0, 1]], "a number": 3,
    "a string": "good", "an object": object(), "empty": [], "booleans": [True, False],
    "a column": [[0], [1]], "bytes": [b"a", b"b"], "a dict": {"a": [0, 1]},
}  # fmt: skip
BATCH_SIZES = (-1, 0, 1.5, "a", True, None, 10**12, NAN, [2], np.int64(2))
INTEGERS = (-1, 0, 1, 1.5, "a", True, 10**9, NAN, [2], None)
WEIGHTS = {
    "NaN": [NAN, 1.0], "infinite": [np.inf, 1.0], "too few": [1.0], "strings": ["a", "b"],
    "negative": [-1.0, 1.0], "None in them": [None, 1.0], "a number": 2.0,
}  # fmt: skip
IDS = {
    "too high": [[2, 99]], "negative": [[2, -1]], "fractions": [[2.5, 3.0]], "strings": [["a"]],
    "rank 1": [2, 3], "rank 3": [[[2]]], "empty": np.zeros((0, 3), "int32"), "no tokens": [[]],
    "None": None, "ragged": [[2], [2, 3]], "NaN": [[NAN, 2.0]], "huge": [[2**40]],
}  # fmt: skip


TAGS = {"labels": ["PER", "LOC"], "head": "crf"}
OTHERS = {  # than the tasks of `builders`: class, kind of backbone, options
    "tagger": (roformer_tf.RoFormerTokenClassifier, "v1", TAGS),
    "reader": (roformer_tf.RoFormerQuestionAnswering, "v1", {}),
    "chooser": (roformer_tf.RoFormerMultipleChoice, "v1", {}),
    "sim": (roformer_tf.RoFormerSim, "sim", {}),
}


@functools.cache
def model(name):
    if name == "translator":
        made = seq_2_seq.translator(num_layers=1)
        made.compile(sampler="greedy")
    elif name in OTHERS:
        cls, kind, options = OTHERS[name]
        preprocessor = builders.shared_preprocessor(
            cls.preprocessor_cls, builders.tokenizer(), sequence_length=16
        )
        made = cls(builders.backbone(kind, num_layers=1), preprocessor=preprocessor, **options)
    else:
        made = builders.task(name, preprocessor={})
    if name == "classifier":
        made.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return made


def cases():
    """Yields the name of every case, and a function that runs it."""
    classifier, masked_lm, gpt = model("classifier"), model("masked_lm"), model("causal_lm")
    sim, translator = model("sim"), model("translator")
    tokenizer = builders.tokenizer()
    of_texts = {
        "classifier.fit": lambda x: classifier.fit(x, [0, 1], verbose=0),
        "classifier.evaluate": lambda x: classifier.evaluate(x, [0, 1], verbose=0),
        "classifier.predict": lambda x: classifier.predict(x, verbose=0),
        "classifier.preprocessor": lambda x: classifier.preprocessor(x),
        "fill_mask": lambda x: fill_mask(masked_lm, x),
        "masked_lm.predict": lambda x: masked_lm.predict(x, verbose=0),
        "masked_lm.preprocessor": lambda x: masked_lm.preprocessor(x),
        "gpt.generate": lambda x: gpt.generate(x, max_length=8),
        "gpt.score": lambda x: gpt.score(x),
        "sim.embed": lambda x: sim.embed(x),
        "sim.similar": lambda x: sim.similar(x, n=2, k=1, max_length=16),
        "sim.preprocessor": lambda x: sim.preprocessor(x),
        "translator.generate": lambda x: translator.generate(x, max_length=8),
        "translate": lambda x: translate(translator, x, max_length=8),
        "tokenizer": lambda x: tokenizer(x),
        "tokenizer.encode": lambda x: tokenizer.encode(x, maxlen=8),
        **on_texts(model),
    }  # fmt: skip
    for method, call in of_texts.items():
        for kind in odd_texts():
            yield f"{method}({kind})", lambda call=call, kind=kind: call(odd_texts()[kind])
    yield from answer_cases(model)
    for kind, y in LABELS.items():
        yield f"fit, labels {kind}", lambda y=y: classifier.fit(TEXTS, y, verbose=0)
        yield f"evaluate, labels {kind}", lambda y=y: classifier.evaluate(TEXTS, y, verbose=0)
    for kind, w in WEIGHTS.items():
        yield (
            f"fit, weights {kind}",
            lambda w=w: classifier.fit(TEXTS, [0, 1], sample_weight=w, verbose=0),
        )
    of_sizes = {
        "fit": lambda n: classifier.fit(TEXTS, [0, 1], batch_size=n, verbose=0),
        "evaluate": lambda n: classifier.evaluate(TEXTS, [0, 1], batch_size=n, verbose=0),
        "predict": lambda n: classifier.predict(TEXTS, batch_size=n, verbose=0),
        "fill_mask": lambda n: fill_mask(masked_lm, ["天[MASK]"], batch_size=n),
        "score": lambda n: gpt.score(TEXTS, batch_size=n),
        "embed": lambda n: sim.embed(TEXTS, batch_size=n),
        "translate": lambda n: translate(translator, ["a cat"], batch_size=n, max_length=8),
    }
    for method, call in of_sizes.items():
        for n in BATCH_SIZES:
            yield f"{method}, batch_size={n!r}", functools.partial(call, n)
    of_integers = {
        "generate, max_length": lambda n: gpt.generate(TEXTS, max_length=n),
        "generate, min_new_tokens": lambda n: gpt.generate(TEXTS, max_length=8, min_new_tokens=n),
        "translator.generate, max_length": lambda n: translator.generate(["a cat"], max_length=n),
        "similar, n": lambda n: sim.similar(TEXTS[0], n=n if n != 10**9 else 3, k=1, max_length=16),
        "similar, k": lambda n: sim.similar(TEXTS[0], n=2, k=n, max_length=16),
        "fill_mask, top_k": lambda n: fill_mask(masked_lm, "天[MASK]", top_k=n),
        "encode, maxlen": lambda n: tokenizer.encode("天地", maxlen=n),
        "sequence_length": lambda n: roformer_tf.RoFormerTextClassifierPreprocessor(
            tokenizer, sequence_length=n
        )(TEXTS),
        "fit, epochs": lambda n: classifier.fit(
            TEXTS, [0, 1], epochs=n if n != 10**9 else 1, verbose=0
        ),
        "enable_lora": lambda n: builders.backbone(num_layers=1).enable_lora(
            n if n != 10**9 else 8
        ),
    }
    for method, call in of_integers.items():
        for n in INTEGERS:
            yield f"{method}={n!r}", functools.partial(call, n)
    for kind, ids in IDS.items():
        for name in ("token_ids", "segment_ids", "padding_mask", "mask_positions"):
            inputs = {"token_ids": np.array([[2, 7]]), name: ids}
            yield f"masked_lm({name}: {kind})", lambda x=inputs: masked_lm(x)
            inputs = {"token_ids": np.array([[2, 7]]), name: ids}
            yield f"predict({name}: {kind})", lambda x=inputs: masked_lm.predict(x, verbose=0)


def run_inputs():
    """Yields the record of every case."""
    for name, call in cases():
        outcome, detail = outcome_of(call)
        yield {
            "subject": name.split("(")[0].split(",")[0],
            "what": name,
            "outcome": outcome,
            **detail,
        }


if __name__ == "__main__":
    import json
    from collections import Counter

    records = []
    for record in run_inputs():
        records.append(record)
        if record["outcome"] == "defect":
            print(json.dumps(record, ensure_ascii=False), flush=True)
    print(Counter(record["outcome"] for record in records))
