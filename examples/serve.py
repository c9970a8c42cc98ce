"""Classifies texts with a SavedModel written by `export_saved_model`. Needs TensorFlow, nothing else.

    python examples/serve.py FOLDER "房间很干净，服务也好。"

Without texts it reads standard input, one text a line. It prints a JSON object for each text. The
classes of a model without labels are numbers.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")  # faster on processors without AVX-512

import json
import sys

# TensorFlow imports Keras if it is installed. The model needs neither Keras nor this package:
# blocking the imports shows that, and starts faster.
KEPT_OUT = ("keras", "keras_hub", "roformer_tf", "tensorflow_text")
sys.modules.update(dict.fromkeys(KEPT_OUT))

import tensorflow as tf  # noqa: E402


def main():
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    served = tf.saved_model.load(sys.argv[1])
    texts = sys.argv[2:] or [line.rstrip("\n") for line in sys.stdin]
    answers = served.signatures["serving_default"](texts=tf.constant(texts, tf.string))
    if "class_id" not in answers:
        raise SystemExit(f"{sys.argv[1]} has no classes: its outputs are {', '.join(answers)}.")
    labels = answers.get("label", answers["class_id"]).numpy()
    loaded = {name.split(".")[0] for name, module in sys.modules.items() if module}
    for i, text in enumerate(texts):
        answer = {
            "text": text,
            "label": labels[i].decode() if "label" in answers else int(labels[i]),
            "probabilities": [round(float(p), 6) for p in answers["probabilities"][i]],
            "keras_imported": not loaded.isdisjoint(KEPT_OUT),
        }
        print(json.dumps(answer, ensure_ascii=False))


if __name__ == "__main__":
    main()
