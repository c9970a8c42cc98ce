"""`examples/clue.py` trains on small files in the form of CLUE's, and writes what its server takes."""

import importlib
import json

import pytest

PAIRS = [
    {"sentence1": "今天天气好", "sentence2": "天气不错", "label": "1", "id": 0},
    {"sentence1": "我在北京", "sentence2": "他在上海", "label": "0", "id": 1},
]
WSC = [
    {
        "target": {"span1_index": 0, "span1_text": "张三", "span2_index": 6, "span2_text": "他"},
        "text": "张三说明天，他来",
        "label": label,
        "id": i,
    }
    for i, label in enumerate(["true", "false"])
]
NER = [
    {"text": "张三在北京", "label": {"name": {"张三": [[0, 1]]}, "address": {"北京": [[3, 4]]}}, "id": 0},
    {"text": "天气好", "label": {}, "id": 1},
]  # fmt: skip
ASKED = [("谁在北京？", "张三", 0), ("李四在哪？", "上海", 9)]
CMRC = {
    "data": [
        {
            "paragraphs": [
                {
                    "context": "张三在北京，李四在上海。",
                    "qas": [
                        {"id": f"Q{i}", "question": question, "answers": [{"text": text, "answer_start": start}]}
                        for i, (question, text, start) in enumerate(ASKED)
                    ],
                }
            ]
        }
    ]
}  # fmt: skip
C3 = [
    [["张三在北京。", "李四在上海。"],
     [{"question": "谁在北京？", "choice": ["张三", "李四"], "answer": "张三", "id": 0},
      {"question": "李四在哪？", "choice": ["北京", "上海", "天津"], "answer": "上海", "id": 1}], "0"]
]  # fmt: skip
IDIOMS = ["画蛇添足", "井底之蛙", "守株待兔", "对牛弹琴"]
CHID = [{"candidates": IDIOMS, "content": ["真是#idiom000001#，又#idiom000002#。"]}]
ANSWERS = {"#idiom000001#": 0, "#idiom000002#": 2}


def lines(rows):
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def files(task):
    """The files of a task: name -> content. Test files have no labels."""
    parts = {"train": "train.json", "dev": "dev.json", "test": "test.json"}
    if task == "chid":
        found = {f"{part}.json": lines(CHID) for part in ("train", "dev")} | {
            f"{part}_answer.json": json.dumps(ANSWERS) for part in ("train", "dev")
        }
        return found | {"test1.1.json": lines(CHID)}
    if task == "c3":
        names = ("m-train.json", "d-train.json", "m-dev.json", "d-dev.json", "test1.1.json")
        return dict.fromkeys(names, json.dumps(C3))
    if task == "cmrc2018":
        return dict.fromkeys(parts.values(), json.dumps(CMRC))
    rows = {"cluener": NER, "wsc": WSC}.get(task, PAIRS)
    if task == "csl":
        rows = [{"abst": r["sentence1"], "keyword": ["天气", "北京"], **r} for r in rows]
    if task in ("iflytek", "tnews"):
        rows = [{"sentence": r["sentence1"], "label": r["label"], "id": r["id"]} for r in rows]
    if task == "ocnli":
        parts["train"] = "train.50k.json"
        rows = [*rows, {**rows[0], "label": "-"}]  # where the annotators did not agree
    if task in ("tnews", "wsc"):
        parts["test"] = "test1.1.json"
    unlabelled = [{k: v for k, v in row.items() if k != "label"} for row in rows[:2]]
    return {name: lines(unlabelled if part == "test" else rows) for part, name in parts.items()}


TASKS = "afqmc cmnli ocnli csl iflytek tnews wsc cluener cmrc2018 c3 chid".split()


@pytest.mark.slow
@pytest.mark.eager  # a step or two of each task, whose graphs are tested with the models
@pytest.mark.parametrize("task", TASKS)
def test_task(call, one_layer, tmp_path, capsys, task):
    """The first task on the default model; what is read and written does not depend on the network."""
    for name, content in files(task).items():
        (tmp_path / name).write_text(content, encoding="utf-8")
    output = tmp_path / "answers"
    model = () if task == TASKS[0] else ("--model", one_layer)
    call("clue", task, "--data", tmp_path, "--output", output, "--epochs", "1", *model)
    assert "best on the development set: " in capsys.readouterr().out
    (file,) = output.iterdir()
    text = file.read_text(encoding="utf-8")
    if task == "chid":  # the gaps of a line have different idioms
        found = json.loads(text)
        assert set(found) == set(ANSWERS) and len(set(found.values())) == 2
    elif task == "cmrc2018":
        found = json.loads(text)
        assert set(found) == {"Q0", "Q1"}
        context = CMRC["data"][0]["paragraphs"][0]["context"]
        assert all(answer and answer in context for answer in found.values())
    elif task == "cluener":
        rows = [json.loads(line) for line in text.splitlines()]
        assert [row["text"] for row in rows] == [row["text"] for row in NER]
        for row in rows:
            for mentions in row["label"].values():
                for mention, spans in mentions.items():
                    assert all(row["text"][start : end + 1] == mention for start, end in spans)
    else:
        rows = [json.loads(line) for line in text.splitlines()]
        labels = {0, 1, 2} if task == "c3" else {"0", "1", "true", "false"}
        assert [row["id"] for row in rows] == [0, 1]
        assert {row["label"] for row in rows} <= labels


def test_mentions_are_marked():
    clue_data = importlib.import_module("clue_data")

    assert clue_data.marked_mentions(WSC[0]) == "[[张三]]说明天，[[他]]来"
    assert clue_data.abstract_and_keywords({"abst": "a", "keyword": ["b", "c"]}) == ("a", "b，c")
