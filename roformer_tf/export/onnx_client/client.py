"""Answers texts: `python client.py TEXT [TEXT ...]`. Needs onnxruntime and the files beside it."""

import json
import sys

import numpy as np
import onnxruntime
from tokenizer import FOLDER, IDS, SETTINGS, encode

SESSION = onnxruntime.InferenceSession(str(FOLDER / "model.onnx"))
OUTPUTS = [output.name for output in SESSION.get_outputs()]


def run(texts):
    """Returns a dictionary of arrays for a list of texts, or of tuples of two texts."""
    rows = [encode(*([text] if isinstance(text, str) else text)) for text in texts]
    width = max(len(ids) for ids, _ in rows)
    inputs = {name: np.zeros((len(rows), width), "int32") for name in SETTINGS["inputs"]}
    for i, (ids, segments) in enumerate(rows):
        inputs["token_ids"][i] = SETTINGS["pad_id"]
        inputs["token_ids"][i, : len(ids)] = ids
        inputs["segment_ids"][i, : len(ids)] = segments
        inputs["padding_mask"][i, : len(ids)] = 1
    if "mask_positions" in inputs:
        masks = [np.flatnonzero(np.equal(ids, SETTINGS["mask_id"])) for ids, _ in rows]
        inputs["mask_positions"] = np.zeros((len(rows), max(map(len, masks))), "int32")
        for row, positions in zip(inputs["mask_positions"], masks):
            row[: len(positions)] = positions
    return dict(zip(OUTPUTS, SESSION.run(OUTPUTS, inputs)))


def main():
