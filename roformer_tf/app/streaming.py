"""Generation that shows the text after every token."""

import queue
import threading

import keras
import keras_hub
from keras import ops, random


class StreamingSampler(keras_hub.samplers.TopPSampler):
    """Nucleus sampling that reports each token, and whose settings change without a new graph.

    `generate` runs all steps in one graph. On TensorFlow this sampler calls Python from that graph
    after each step. On another backend it samples the same tokens and reports none.

    Example:

    >>> from roformer_tf.app.streaming import StreamingSampler
    >>> sampler = StreamingSampler()
    >>> sampler.reset(top_p=0.9, temperature=0.7, seed=1)
    """

    def __init__(self):
        super().__init__(p=keras.Variable(1.0), temperature=keras.Variable(1.0), seed=0)
        self._report = None  # called with the new tokens, an int32 array `(batch,)`
        self._thread, self._stopped = None, threading.Event()

    @property
    def variables(self):
        # JAX passes these to a compiled program, and takes all others for constants.
        return [*super().variables, self.p, self.temperature]

    def reset(self, top_p, temperature, seed):
        """Sets what the next generation samples with. `top_p=0` takes the most likely tokens."""
        self.p.assign(top_p)
        self.temperature.assign(temperature)
        self.seed_generator.state.assign(random.SeedGenerator(seed).state)

    def get_next_token(self, probabilities):
        tokens = super().get_next_token(probabilities)
        if keras.backend.backend() != "tensorflow":
            return tokens
        import tensorflow as tf

        reported = tf.numpy_function(self._pass_on, [tokens], tf.int32)
        return tf.ensure_shape(reported, tokens.shape)

    def _pass_on(self, tokens):
        if self._stopped.is_set():  # the error ends the graph
            raise InterruptedError("Nobody reads this text any more.")
        if self._report is not None:
            self._report(tokens)
        return tokens

    def start(self, run, report):
        """Calls `run`, which generates, in a thread, and `report` with the tokens of each step.

        Returns:
            The thread, for `end`.
        """
        self._report, self._stopped = report, threading.Event()
        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()
        return self._thread

    def end(self, thread=None):
        """Stops the generation of a thread, by default of any, and waits until it has ended."""
        if self._thread is not None and thread in (None, self._thread):
            self._stopped.set()
            self._thread.join()
            self._report, self._thread, self._stopped = None, None, threading.Event()


def stream(task, prompt, max_length, top_p=0.9, temperature=1.0, seed=0):
    """Yields the text of a prompt as it grows, and at last what `generate` returns.

    Args:
        task: a `RoFormerCausalLM` compiled with a `StreamingSampler`. It runs one stream at a time.
        prompt: str.
        max_length: int. Maximum number of tokens, with the prompt and special tokens.
        top_p, temperature, seed: See `StreamingSampler.reset`.

    Yields:
        str.

    Raises:
        ValueError: See `RoFormerCausalLM.generate`.
    """
    results = queue.SimpleQueue()

    def run():
        try:
            results.put(task.generate(prompt, max_length=max_length))
        except Exception as error:
            results.put(error)

    task.sampler.end()  # the stream of a reader who left without closing it
    task.sampler.reset(top_p, temperature, seed)
    thread = task.sampler.start(run, lambda tokens: results.put(int(tokens[0])))
    token_ids = None
    try:
        while isinstance(result := results.get(), int):
            if token_ids is None:
                token_ids = _shown_prompt(task, prompt, max_length)
            token_ids.append(result)
            if results.empty():  # a reader that is slower than the model sees the latest text
                yield task.preprocessor.tokenizer.detokenize(token_ids)
        if isinstance(result, Exception):
            raise result
        yield result
    finally:
        task.sampler.end(thread)


def _shown_prompt(task, prompt, max_length):
    """Returns the ids of the prompt, which `generate` leaves out with UniLM."""
    if task.backbone.masking == "unilm":
        return []
    inputs = task.preprocessor.generate_preprocess([prompt], sequence_length=max_length)
    mask = ops.convert_to_numpy(inputs["padding_mask"]).astype("bool")
    return ops.convert_to_numpy(inputs["token_ids"])[mask].tolist()
