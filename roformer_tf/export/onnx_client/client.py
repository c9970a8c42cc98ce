"""Answers texts: `python client.py TEXT [TEXT ...]`. Needs onnxruntime and the files beside it."""

import json
import sys

import numpy as np
import onnxruntime
from tokenizer import FOLDER, IDS, SETTINGS, encode

SESSION = onnxruntime.InferenceSession(str(FOLDER / "model.onnx"))
TOKENS = {i: token for token, i in IDS.items()}


def run(texts):
    """Returns the model's outputs for a list of texts, or of pairs of texts, as arrays by name."""
    if isinstance(texts, str) or not len(texts):
        raise ValueError(f"Expected a list of at least one text. Received: {texts!r}")
    rows = [[row] if isinstance(row, str) else row for row in texts]
    for row in rows:
        are_strings = isinstance(row, (list, tuple)) and all(isinstance(text, str) for text in row)
        if not are_strings or len(row) not in (1, 2):
            raise TypeError(f"Expected a string, or a pair of strings. Received: {row!r}")
    ids = [encode(*row) for row in rows]
    shape = len(rows), max(len(token_ids) for token_ids, _ in ids)
    token_ids = np.full(shape, SETTINGS["pad_id"], "int32")
    inputs = {"token_ids": token_ids, "segment_ids": 0 * token_ids, "padding_mask": 0 * token_ids}
    for i, (row, segment_ids) in enumerate(ids):
        for name, values in zip(inputs, (row, segment_ids, 1)):
            inputs[name][i, : len(row)] = values
    if SETTINGS["top_k"]:
        found = [np.flatnonzero(row == SETTINGS["mask_id"]) for row in token_ids]
        for row, positions in zip(rows, found):
            count = sum(text.count(SETTINGS["mask_token"]) for text in row)
            if len(positions) < count:
                raise ValueError(
                    f"Expected a text whose masks lie within {SETTINGS['sequence_length']} tokens. "
                    f"Received: {count} masks, of which {len(positions)} do: {row!r}"
                )
        inputs["mask_positions"] = np.zeros((len(rows), max(1, *map(len, found))), "int32")
        for row, positions in zip(inputs["mask_positions"], found):
            row[: len(positions)] = positions
    names = [output.name for output in SESSION.get_outputs()]
    outputs = dict(zip(names, SESSION.run(names, inputs)))
    if SETTINGS["top_k"]:  # the most probable tokens of each mask
        best = np.argsort(-outputs["logits"], axis=-1)[..., : SETTINGS["top_k"]].tolist()
        tokens = [[[TOKENS.get(i, "") for i in ids] for ids in row] for row in best]
        return {"tokens": [row[: len(masks)] for row, masks in zip(tokens, found)], **outputs}
    if SETTINGS["labels"]:
        outputs["label"] = [SETTINGS["labels"][i] for i in outputs["class_id"]]
    return outputs


if __name__ == "__main__":
    if len(sys.argv) == 1:
        sys.exit(f"usage: python {sys.argv[0]} TEXT [TEXT ...]")
    # a byte that is not UTF-8 stays an escape, as JSON writes it
    sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")
    outputs = run(sys.argv[1:])
    for i, text in enumerate(sys.argv[1:]):
        answer = {name: values[i] for name, values in outputs.items() if name != "logits"}
        print(
            json.dumps({"text": text, **answer}, ensure_ascii=False, default=lambda x: x.tolist())
        )
