"""The page of a causal language model: a text that grows token by token."""

import queue
import threading

import keras
import keras_hub
from keras import ops, random

from roformer_tf.app.parts import answer_on, check_texts, example_texts

TITLE = "Generate"


class StreamingSampler(keras_hub.samplers.TopPSampler):
    """Nucleus sampling that reports each token, and whose settings change without a new graph.

    `generate` runs all steps in one graph. On TensorFlow this sampler calls Python from that graph
    after each step. On another backend it samples the same tokens and reports none.

    Example:

    >>> from roformer_tf.app.generate import StreamingSampler
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

        Returns the thread, for `end`.
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


def streaming(task):
    """Returns a task that shares all layers with `task`, and has a `StreamingSampler` of its own.

    So the app leaves a model in memory as it was compiled: a file or a SavedModel of it could not
    hold this sampler.
    """
    if isinstance(task.sampler, StreamingSampler):
        return task
    twin = object.__new__(type(task))  # `copy.copy` would save the model and load it
    own = {"sampler": StreamingSampler(), "generate_function": None, "generates_with_xla": False}
    vars(twin).update({**vars(task), **own})
    return twin


def generate(task, prompt, max_length=64, top_p=0.9, temperature=1.0, seed=0):
    """Yields the text of a prompt as it grows, and at last what `task.generate` returns.

    Args:
        task: a `RoFormerCausalLM`. One that `streaming` returned keeps its graph for the next call,
            and runs one stream at a time.
        prompt: str.
        max_length: int. Maximum number of tokens, with the prompt and special tokens.
        top_p, temperature, seed: See `StreamingSampler.reset`.

    Raises:
        ValueError: If there is no prompt; see also `RoFormerCausalLM.generate`.
    """
    check_texts(prompt=prompt)
    task = streaming(task)
    results = queue.SimpleQueue()

    def run():
        try:
            results.put(task.generate(prompt, max_length=max_length))
        except Exception as error:
            results.put(error)

    task.sampler.end()  # the stream of a reader who left without closing it
    task.sampler.reset(top_p, temperature, seed)
    thread = task.sampler.start(run, lambda tokens: results.put(int(tokens[0])))
    token_ids = [] if task.backbone.masking == "unilm" else None  # which leaves the prompt out
    try:
        while isinstance(result := results.get(), int):
            if token_ids is None:
                inputs = task.preprocessor.generate_preprocess([prompt], sequence_length=max_length)
                mask = ops.convert_to_numpy(inputs["padding_mask"]).astype("bool")
                token_ids = ops.convert_to_numpy(inputs["token_ids"])[mask].tolist()
            token_ids.append(result)
            if results.empty():  # a reader that is slower than the model sees the latest text
                yield task.preprocessor.tokenizer.detokenize(token_ids)
        if isinstance(result, Exception):
            raise result
        yield result
    finally:
        task.sampler.end(thread)


def build(gr, task):
    """Adds the page to the Gradio app that is being built."""
    texts = example_texts(
        task, ["房间很", "物流很快", "这本书"], ["The room was", "I bought this book"]
    )
    task = streaming(task)
    answers = task.backbone.masking == "unilm"  # and does not continue
    with gr.Row():
        with gr.Column():
            text = gr.Textbox(texts[0], label="Source" if answers else "Beginning", lines=3)
            with gr.Row():
                button = gr.Button("Generate", variant="primary")
                stop = gr.Button("Stop")
            with gr.Accordion("Settings", open=False):
                most = task.preprocessor.sequence_length
                length = min(64, most)
                max_length = gr.Slider(4, most, length, step=1, label="Maximum number of tokens")
                top_p = gr.Slider(
                    0, 1, 0.9, step=0.05, label="Top-p; 0 takes the most likely token"
                )
                temperature = gr.Slider(0.1, 2, 0.7, step=0.1, label="Temperature")
                seed = gr.Number(1, label="Seed", precision=0)
            gr.Examples(texts, text, label="Examples")
        with gr.Column():
            shown = gr.Textbox(label="Text", lines=10, interactive=False)

    def answer(text, max_length, *sampling):
        yield from generate(task, text, int(max_length), *sampling)

    inputs = [text, max_length, top_p, temperature, seed]
    running = answer_on(gr, [button.click, text.submit], answer, inputs, [shown])
    stop.click(None, cancels=[running])
