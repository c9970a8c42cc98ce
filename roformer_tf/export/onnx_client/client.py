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
    rows = [encode(*([text] if isinstance(text, str) else text)) for text in texts]
    shape = len(rows), max(len(ids) for ids, _ in rows)
    token_ids = np.full(shape, SETTINGS["pad_id"], "int32")
    inputs = {"token_ids": token_ids, "segment_ids": 0 * token_ids, "padding_mask": 0 * token_ids}
    for i, (ids, segment_ids) in enumerate(rows):
        for name, values in zip(inputs, (ids, segment_ids, 1)):
            inputs[name][i, : len(ids)] = values
    if SETTINGS["fills_masks"]:
        found = [np.flatnonzero(row == SETTINGS["mask_id"]) for row in token_ids]
        inputs["mask_positions"] = np.zeros((len(rows), max(1, *map(len, found))), "int32")
        for row, positions in zip(inputs["mask_positions"], found):
            row[: len(positions)] = positions
    names = [output.name for output in SESSION.get_outputs()]
    outputs = dict(zip(names, SESSION.run(names, inputs)))
    if SETTINGS["fills_masks"]:  # the five most probable tokens of each mask
        best = np.argsort(-outputs["logits"], axis=-1)[..., :5].tolist()
        tokens = [[[TOKENS.get(i, "") for i in ids] for ids in row] for row in best]
        return {"tokens": [row[: len(masks)] for row, masks in zip(tokens, found)], **outputs}
    if SETTINGS["labels"]:
        outputs["label"] = [SETTINGS["labels"][i] for i in outputs["class_id"]]
    return outputs


if __name__ == "__main__":
    outputs = run(sys.argv[1:])
    for i, text in enumerate(sys.argv[1:]):
        answer = {name: values[i] for name, values in outputs.items() if name != "logits"}
        print(
            json.dumps({"text": text, **answer}, ensure_ascii=False, default=lambda x: x.tolist())
        )
