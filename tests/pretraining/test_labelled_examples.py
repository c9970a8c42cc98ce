"""The files of labelled tasks: their examples, and the lines that are skipped."""

import json

import pytest
import tensorflow as tf

from roformer_tf.pretraining.labelled_files import (
    ExampleReader,
    ReadingReader,
    split_examples,
    split_readings,
)


def documents(path, *options, **more):
    reader = ExampleReader(*options, **more)
    examples = tf.constant(list(reader.documents(str(path))))
    labels, *texts = split_examples(examples, len(reader.fields))
    return labels.numpy().tolist(), [[t.decode() for t in x.numpy()] for x in texts], reader


def test_examples_of_json_lines(tmp_path):
    path = tmp_path / "train.json"
    values = [
        {"a": "天地", "b": "玄黄", "y": 1},
        {"a": "宇\0宙", "b": "", "y": "0"},
        {"a": " ", "b": "洪荒", "y": 0},  # empty
        {"a": "日月", "b": "盈昃", "y": "-"},
        {"a": "日月", "y": 1},
        {"a": "日月", "b": "盈昃", "y": True},
        ["日月"],
    ]
    path.write_text("\n".join(map(json.dumps, values)) + "\nno json\n")
    labels, texts, reader = documents(path, "a", "y", ["0", "1"], "b")
    assert labels == [1, 0]
    assert texts == [["天地", "宇 宙"], ["玄黄", ""]]
    assert (reader.empty_documents, reader.bad_lines) == (1, 5)
    reasons = [bad.split(": ", 1)[1] for bad in reader.first_bad_lines]
    assert reasons[:4] == [
        "the label '-' is unknown",
        "not an object with a string `b`",
        "not an object with a string or an integer `y`",
        "not an object",
    ]
    with pytest.raises(ValueError, match="fields `a`, `b`, `y`.*raise `tasks.nli.max_bad_lines`"):
        documents(path, "a", "y", ["0", "1"], "b", max_bad_lines=4, task="nli")


def test_examples_of_a_table(tmp_path):
    path = tmp_path / "train.tsv"
    table = 'label\ttext\n是\t"天地\n否\t玄\t黄\n否\t宇宙\r\n\n \n'  # blank lines are no rows
    path.write_text(table, encoding="utf-8")
    labels, texts, reader = documents(path, "text", "label", ["否", "是"])
    assert labels == [1, 0] and texts == [['"天地', "宇宙"]]  # no quotes in such a table
    assert reader.first_bad_lines == [f"{path}:3: 3 values for 2 columns"]
    with pytest.raises(ValueError, match="expected the columns sentence. Received: label, text"):
        documents(path, "sentence", "label", ["否", "是"])
    path.write_bytes("标签\ttext\n".encode("gb18030") + table.encode())
    with pytest.raises(ValueError, match="line 1: expected the names of the columns, in UTF-8"):
        documents(path, "text", "label", ["否", "是"])


def test_examples_of_reading(tmp_path):
    path = tmp_path / "train.jsonl"
    good = [
        {"q": "谁", "p": " 我\0和你", "a": [["你", 4], ["你", 4], ["我", 1]]},
        {"q": "谁", "p": "我和你", "a": [{"text": "和你", "answer_start": 1}]},
        {"q": "谁", "p": "我和你", "a": {"text": ["你", "我"], "answer_start": [2, 0]}},
        {"q": "谁", "p": "我和你", "a": [["", -1]]},
        {"q": "谁", "p": "我和你", "a": []},
        {"q": " ", "p": "我和你", "a": []},  # empty
    ]
    bad = [
        ({"q": "谁", "p": "我", "a": [["我", 1]]}, "the answer '我' does not start at 1 of `p`"),
        ({"q": "谁", "p": "我", "a": [["我", -2]]}, "the answer '我' does not start at -2 of `p`"),
        ({"q": "谁", "p": "我"}, "not an object with a list `a` of answers with text and start"),
        ({"q": "谁", "p": "我", "a": ["我"]}, "not an object with a list `a` of"),
        ({"q": "谁", "p": "我", "a": [["我", True]]}, "not an object with a list `a` of"),
        ({"q": "谁", "p": "我", "a": {"text": ["我"]}}, "not an object with a list `a` of"),
        ({"q": "谁", "a": []}, "not an object with a string `p`"),
        (["谁"], "not an object"),
    ]
    lines = [*good, *(line for line, _ in bad)]
    path.write_text("\n".join(map(json.dumps, lines)) + "\nno json\n", encoding="utf-8")
    reader = ReadingReader("q", "p", "a")
    answers, question, context = split_readings(list(reader.documents(str(path))))
    assert answers.numpy().tolist() == [
        [[4, 5], [1, 2]],
        [[1, 3], [-1, -1]],
        [[2, 3], [0, 1]],
        *[[[-1, -1], [-1, -1]]] * 2,
    ]
    assert [text.decode() for text in question.numpy()] == ["谁"] * 5
    assert [text.decode() for text in context.numpy()] == [" 我 和你", *["我和你"] * 4]
    assert (reader.empty_documents, reader.bad_lines) == (1, 9)
    for found, (_, reason) in zip(reader.first_bad_lines, bad):
        assert found.split(": ", 1)[1].startswith(reason)
    with pytest.raises(ValueError, match="strings `q` and `p`.*raise `tasks.x.max_bad_lines`"):
        list(ReadingReader("q", "p", "a", max_bad_lines=8, task="x").documents(str(path)))
    # none of the examples has an answer
    answers, *_ = split_readings(tf.constant(["\0a\0b"]))
    assert answers.numpy().tolist() == [[[-1, -1]]]
