"""A process that serves SavedModels with nothing but TensorFlow.

Run as a program, it answers on its pipes. It also imports the packages named as arguments.
"""

import functools
import importlib
import os
import pickle
import subprocess
import sys

BLOCKED = (
    *("keras", "keras_hub", "roformer_tf", "tensorflow_text", "tf_keras"),
    *("bert4keras", "jieba", "tokenizers", "sentencepiece"),
)


class Server:
    """Starts the process and asks it. `packages` are those that it has besides TensorFlow.

    It inherits the number of threads: TensorFlow draws other random tokens with another number.
    """

    def __init__(self, folder, *packages):
        # -I: modules are found neither in the current folder nor by PYTHONPATH
        self.process = subprocess.Popen(
            [sys.executable, "-I", __file__, *packages],
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"},
        )

    def __call__(self, folder, signature="serving_default", **inputs):
        """Returns a dict of arrays, or raises RuntimeError with the message of the process."""
        answer = self._request((str(folder), signature, inputs))
        if isinstance(answer, str):
            raise RuntimeError(answer)
        return answer

    def modules(self):
        """Returns the names of all modules that the process has imported."""
        return self._request(None)

    def _request(self, request):
        pickle.dump(request, self.process.stdin)
        self.process.stdin.flush()
        return pickle.load(self.process.stdout)

    def close(self):
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


def main():
    blocked = set(BLOCKED) - set(sys.argv[1:])
    sys.modules.update(dict.fromkeys(blocked))  # importing them raises ImportError
    import numpy as np
    import tensorflow as tf

    for package in sys.argv[1:]:
        importlib.import_module(package)
    load = functools.lru_cache(maxsize=4)(tf.saved_model.load)
    while True:
        try:
            request = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        if request is None:
            answer = sorted(name for name, module in sys.modules.items() if module)
        else:
            folder, signature, inputs = request
            try:
                function = load(folder).signatures[signature]
                dtypes = {k: s.dtype for k, s in function.structured_input_signature[1].items()}
                tensors = {
                    k: tf.constant(x, dtypes[k], shape=np.shape(x)) for k, x in inputs.items()
                }
                answer = {name: x.numpy() for name, x in function(**tensors).items()}
            except Exception as error:
                answer = f"{type(error).__name__}: {error}"
        pickle.dump(answer, sys.stdout.buffer)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
