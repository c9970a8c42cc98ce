"""Wrong inputs for the tasks that answer: entities, reading, choices."""

import functools

import numpy as np

from roformer_tf.models import cloze_examples, entities_from_words, zero_shot

NAN = float("nan")
TEXTS = ["天地", "玄黄宇"]
ENTITIES = {
    "missing": None, "a string": "LOC", "strings": ["LOC", "PER"], "too few": [[]],
    "too many": [[], [], []], "unknown": [[(0, 1, "XYZ")], []], "backwards": [[(1, 0, "LOC")], []],
    "empty": [[(1, 1, "LOC")], []], "negative": [[(-2, 1, "LOC")], []], "beyond": [[(0, 9, "LOC")], []],
    "floats": [[(0.0, 1.5, "LOC")], []], "NaN": [[(NAN, 1, "LOC")], []], "pairs": [[(0, 1)], []],
    "flat": [(0, 1, "LOC"), (0, 1, "LOC")], "None in them": [None, []], "None for one": [[None], []],
    "dicts": [[{"start": 0}], []], "numbers": [0, 1], "a type too high": [[(0, 1, 9)], []],
    "True": [[(False, True, "LOC")], []], "an array": np.zeros((2, 1, 3)), "an object": object(),
    "strings as numbers": [[("0", "1", "LOC")], []], "a type that is a list": [[(0, 1, ["LOC"])], []],
    "huge": [[(0, 2**40, "LOC")], []], "bytes": [[(0, 1, b"LOC")], []],
}  # fmt: skip
ANSWERS = {
    "missing": None, "a string": "天", "strings": ["天", "玄"], "too few": [(0, 1)],
    "too many": [(0, 1)] * 3, "backwards": [(1, 0), None], "empty": [(1, 1), None],
    "negative": [(-3, 1), None], "beyond": [(0, 9), None], "floats": [(0.0, 1.0), None],
    "NaN": [(NAN, 1), None], "triples": [(0, 1, 2), None], "numbers": [0, 1], "all None": [None, None],
    "dicts": [{"start": 0}, None], "an object": object(), "huge": [(0, 2**40), None],
}  # fmt: skip
CHOICES = {
    "None": None, "a string": "天地", "strings": ["天", "地"], "too few": [["天", "地"]],
    "an empty list": [], "no choice": [[], ["天"]], "an empty choice": [["天", ""], ["地"]],
    "one choice": [["天"], ["地"]], "numbers": [[1, 2], [3]], "None in them": [["天", None], ["地"]],
    "nested": [[["天"]], [["地"]]], "bytes": [[b"\xff", "天"], ["地"]], "an object": object(),
    "tuples": [("天", "地"), ("玄",)], "an array": np.array([["天", "地"], ["玄", "黄"]]), "a dict": {},
}  # fmt: skip
LABELS = {
    "missing": None, "too high": [9, 0], "negative": [-1, 0], "strings": ["天", "地"], "too few": [0],
    "floats": [0.5, 0], "NaN": [NAN, 0], "None in them": [None, 0], "a number": 3, "one-hot": [[1, 0], [0, 1]],
}  # fmt: skip
COLUMNS = (None, 3, "天", [], {}, {"question": ["天"]}, {"text": ["天"]}, (["天"],), ["天"],
           {"question": ["天", "地"], "context": ["玄"]}, {"question": None, "context": ["玄"]},
           {"question": "天", "context": "地"}, {"question": [], "context": []})  # fmt: skip


def on_texts(model):
    """Returns functions of texts of any form, by name."""
    tagger, reader, chooser = model("tagger"), model("reader"), model("chooser")
    two = [["天", "地"], ["玄"]]
    return {
        "tagger.predict": lambda x: tagger.predict(x, verbose=0),
        "tagger.fit": lambda x: tagger.fit(x, [[], []], verbose=0),
        "tagger.preprocessor": lambda x: tagger.preprocessor(x),
        "reader.predict": lambda x: reader.predict({"question": x, "context": x}, verbose=0),
        "chooser.predict": lambda x: chooser.predict({"question": x, "choices": two}, verbose=0),
        "zero_shot": lambda x: zero_shot(model("masked_lm"), x, "{text}{mask}", {"a": "天"}),
    }


def answer_cases(model):
    """Yields the name of every other case, and a function that runs it."""
    tagger, reader, chooser = model("tagger"), model("reader"), model("chooser")
    data = {"question": TEXTS, "context": TEXTS}
    two = {"question": TEXTS, "choices": [["天", "地"], ["玄"]]}
    for kind, y in ENTITIES.items():
        for method in ("fit", "evaluate"):
            call = functools.partial(getattr(tagger, method), TEXTS, y, verbose=0)
            yield f"tagger.{method}, entities {kind}", call
    for kind, y in ANSWERS.items():
        for method in ("fit", "evaluate"):
            call = functools.partial(getattr(reader, method), data, y, verbose=0)
            yield f"reader.{method}, answers {kind}", call
    for kind, choices in CHOICES.items():
        x = {**two, "choices": choices}
        yield f"chooser.predict, choices {kind}", functools.partial(chooser.predict, x, verbose=0)
    for kind, y in LABELS.items():
        call = functools.partial(chooser.fit, two, y, verbose=0)
        yield f"chooser.fit, labels {kind}", call
    for x in COLUMNS:
        for name, task in (("reader", reader), ("chooser", chooser)):
            yield f"{name}.predict, x={x!r}", functools.partial(task.predict, x, verbose=0)
    for n in (-1, 0, 1.5, "a", None, NAN):
        for option in ("n_best", "max_answer_length", "batch_size", "max_tokens_per_batch"):
            if n is None and option in ("batch_size", "max_tokens_per_batch"):
                continue
            call = functools.partial(reader.predict, data, verbose=0, **{option: n})
            yield f"reader.predict, {option}={n!r}", call
    masked_lm = model("masked_lm")
    for words in (None, {}, [], "天", {"a": ""}, {"a": None}, {"a": 3}, {1: "天"}):
        yield (
            f"zero_shot, words={words!r}",
            functools.partial(zero_shot, masked_lm, TEXTS, "{text}{mask}", words),
        )
    for pattern in (None, 3, "", "{text}", "{mask}{mask}{text}", "{text}{text}{mask}"):
        yield (
            f"zero_shot, pattern={pattern!r}",
            functools.partial(zero_shot, masked_lm, TEXTS, pattern, {"a": "天"}),
        )
    for labels in (None, ["b", "a"], ["a"], [None, "a"], "a"):
        yield (
            f"cloze_examples, labels={labels!r}",
            functools.partial(
                cloze_examples, masked_lm, TEXTS, labels, "{text}{mask}", {"a": "天"}
            ),
        )
    for words, tags in ((["a"], []), ("ab", "OO"), ([1], ["O"]), (["a"], [None]), (["a"], ["X-"])):
        yield (
            f"entities_from_words({words!r}, {tags!r})",
            functools.partial(entities_from_words, words, tags),
        )
