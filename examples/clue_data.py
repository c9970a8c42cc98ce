"""The files of CLUE: what each task reads and writes. `clue.py` trains on them."""

import json
import re
from pathlib import Path

from scipy.optimize import linear_sum_assignment


def read_lines(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file if line.strip()]


def read_json(path):
    return json.loads(Path(path).read_text(encoding="utf-8"))


def write_lines(path, rows):
    lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    Path(path).write_text("".join(lines), encoding="utf-8")


# === Classes ===


def sentence(row):
    return row["sentence"]


def pair(row):
    return row["sentence1"], row["sentence2"]


def abstract_and_keywords(row):
    return row["abst"], "，".join(row["keyword"])


def marked_mentions(row):
    """Writes [[…]] around the two mentions, the later one first, as its brackets move the rest."""
    text, target = row["text"], row["target"]
    spans = [(target[f"span{i}_index"], target[f"span{i}_text"]) for i in (1, 2)]
    for start, mention in sorted(spans, reverse=True):
        text = f"{text[:start]}[[{mention}]]{text[start + len(mention) :]}"
    return text


def read_classes(paths, labelled, text):
    """Returns texts, or a tuple of two columns, labels (`None` in the test part), and ids."""
    rows = [row for row in read_lines(*paths) if row.get("label", "") != "-"]
    texts = list(map(text, rows))
    x = tuple(map(list, zip(*texts))) if isinstance(texts[0], tuple) else texts
    labels = [str(row["label"]) for row in rows] if labelled else None
    return x, labels, [row.get("id", i) for i, row in enumerate(rows)]


def write_classes(path, ids, answers):
    write_lines(path, ({"id": i, "label": answer} for i, answer in zip(ids, answers, strict=True)))


# === Entities ===


def read_entities(paths, labelled):
    rows = read_lines(*paths)
    entities = None
    if labelled:
        entities = [
            [
                (start, end + 1, kind)
                for kind, mentions in row["label"].items()
                for spans in mentions.values()
                for start, end in spans
            ]
            for row in rows
        ]
    return [row["text"] for row in rows], entities, [row.get("id", i) for i, row in enumerate(rows)]


def write_entities(path, ids, texts, answers):
    rows = []
    for i, text, entities in zip(ids, texts, answers, strict=True):
        label = {}
        for start, end, kind, *_ in entities:
            spans = label.setdefault(kind, {}).setdefault(text[start:end], [])
            spans.append([start, end - 1])
        rows.append({"id": i, "text": text, "label": label})
    write_lines(path, rows)


# === Reading ===


def read_questions(paths, labelled):
    x, answers, ids = {"question": [], "context": []}, [], []
    for article in read_json(*paths)["data"]:
        for paragraph in article["paragraphs"]:
            for question in paragraph["qas"]:
                x["question"].append(question["question"])
                x["context"].append(paragraph["context"])
                found = question.get("answers", [])
                answers.append([(a["answer_start"], a["text"]) for a in found])
                ids.append(question["id"])
    return x, answers if labelled else None, ids


# === Choices ===


def read_choices(paths, labelled):
    """C3: documents of several lines, questions with two to four choices."""
    x, labels, ids = {"context": [], "question": [], "choices": []}, [], []
    for path in paths:
        for lines, questions, *_ in read_json(path):
            for question in questions:
                x["context"].append("".join(lines))
                x["question"].append(question["question"])
                x["choices"].append(question["choice"])
                if labelled:
                    labels.append(question["choice"].index(question["answer"]))
                ids.append(question.get("id", len(ids)))
    return x, labels if labelled else None, ids


GAP = re.compile(r"#idiom\d+#")


def read_gaps(paths, labelled):
    """ChID: idioms missing in a text, with ten candidates for all gaps of a line."""
    answers = read_json(paths[1]) if labelled else None
    x, labels, ids = {"left": [], "choices": [], "right": []}, [], []
    for number, row in enumerate(read_lines(paths[0])):
        for content in row["content"]:
            for gap in GAP.finditer(content):
                for side, text in (
                    ("left", content[: gap.start()]),
                    ("right", content[gap.end() :]),
                ):
                    x[side].append(GAP.sub("_____", text))
                x["choices"].append(row["candidates"])
                ids.append((number, gap.group()))
                if labelled:
                    labels.append(answers[gap.group()])
    return x, labels if labelled else None, ids


def assign_gaps(ids, probabilities):
    """Returns the candidate of each gap; the gaps of one line have different ones."""
    found, start = {}, 0
    while start < len(ids):
        stop = start
        while stop < len(ids) and ids[stop][0] == ids[start][0]:
            stop += 1
        rows, columns = linear_sum_assignment(probabilities[start:stop], maximize=True)
        found |= {ids[start + row][1]: int(column) for row, column in zip(rows, columns)}
        start = stop
    return found
