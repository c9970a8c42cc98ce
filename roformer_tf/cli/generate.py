"""Prints each text and its continuation, one per line. A UniLM model prints its answer instead."""

import itertools

from roformer_tf.cli import shared

HELP = "continue texts with RoFormer-GPT or a UniLM model"
SAMPLERS = ("greedy", "top_k", "top_p", "random", "beam")
BATCH_SIZE = 16


def add_arguments(parser):
    shared.add_model(parser)
    shared.add_texts(parser, "今天天气")
    parser.add_argument(
        "--sampler",
        choices=SAMPLERS,
        help="how to choose the next token; default: the sampler of the options below, or greedy",
    )
    parser.add_argument("--temperature", type=float, help="sampling temperature (1)")
    parser.add_argument("--top-k", type=int, help="sample from the K most likely tokens (5)")
    parser.add_argument(
        "--top-p",
        type=float,
        help="nucleus sampling: total probability of the tokens to sample from (0.95)",
    )
    parser.add_argument("--num-beams", type=int, help="beam search with this many beams (4)")
    parser.add_argument(
        "--length-penalty",
        type=float,
        default=1.0,
        help="exponent of the length penalty; 0 favours short texts (1)",
    )
    parser.add_argument("--seed", type=int, help="seed of the sampling")
    parser.add_argument(
        "--max-length",
        type=int,
        help="maximum tokens of a text and its continuation (as saved with the model)",
    )
    parser.add_argument(
        "--min-new-tokens",
        type=int,
        default=0,
        help="tokens to generate before the text may end (0)",
    )
    shared.add_json(parser, "its continuation")


def run(args):
    from roformer_tf.models.fill_mask import check_top_k

    windows = shared.read_texts(args)
    sampler = make_sampler(args)
    task, _ = shared.load_model(args.model, "causal_lm", args.dtype)
    if args.top_k is not None:
        check_top_k(args.top_k, task.backbone.vocabulary_size)
    task.compile(sampler=sampler)
    options = {"max_length": args.max_length, "min_new_tokens": args.min_new_tokens}
    if args.json:
        options["strip_prompt"] = True
    texts = itertools.chain.from_iterable(windows)
    while part := list(itertools.islice(texts, BATCH_SIZE)):
        for text, generated in zip(part, task.generate(part, **options), strict=True):
            if args.json:
                shared.print_json({"text": text, "generated": generated})
            else:
                print(generated, flush=True)


def make_sampler(args):
    """Returns the sampler that the options ask for."""
    import keras_hub

    from roformer_tf.samplers import BeamSearchSampler

    asked = {"top_k": args.top_k, "top_p": args.top_p, "beam": args.num_beams}
    named = [name for name, value in asked.items() if value is not None]
    name = args.sampler or (named[0] if named else "greedy")
    if set(named) - {name}:
        raise ValueError(
            "Expected options of one sampler: `--top-k`, `--top-p` or `--num-beams`. "
            f"Received: --sampler {name} and options of {', '.join(named)}"
        )
    drawn = {"temperature": args.temperature, "seed": args.seed}
    if name in ("greedy", "beam"):
        given = [f"--{option}" for option, value in drawn.items() if value is not None]
        if given:
            raise ValueError(
                f"The sampler {name!r} is deterministic, so it takes no {' or '.join(given)}. "
                "Sample with --top-p, --top-k or --sampler random instead."
            )
    check_sampling(args.temperature, args.top_p)
    drawn["temperature"] = 1.0 if args.temperature is None else args.temperature
    samplers = keras_hub.samplers
    if name == "top_k":
        return samplers.TopKSampler(k=5 if args.top_k is None else args.top_k, **drawn)
    if name == "top_p":
        return samplers.TopPSampler(p=0.95 if args.top_p is None else args.top_p, **drawn)
    if name == "random":
        return samplers.RandomSampler(**drawn)
    if name == "beam":
        num_beams = 4 if args.num_beams is None else args.num_beams
        return BeamSearchSampler(num_beams, args.length_penalty)
    return samplers.GreedySampler()


def check_sampling(temperature, top_p):
    """Raises `ValueError` if a sampling option is neither `None` nor in its range."""
    if temperature is not None and not 0 < temperature < float("inf"):
        raise ValueError(
            "--temperature must be positive; use --sampler greedy for the most likely token. "
            f"Received: --temperature {temperature:g}"
        )
    if top_p is not None and not 0 < top_p <= 1:
        raise ValueError(f"--top-p must be in (0, 1]. Received: --top-p {top_p:g}")
