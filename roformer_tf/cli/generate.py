"""`python -m roformer_tf generate MODEL TEXT…`: what a causal or a UniLM model writes."""

from roformer_tf.cli.text_arguments import add_json, add_texts, print_json, read_texts

SAMPLERS = ("greedy", "top_k", "top_p", "random", "beam")
BATCH_SIZE = 16


def add_parser(subparsers):
    """Adds the command to the command line."""
    parser = subparsers.add_parser(
        "generate",
        help="go on from texts, by a RoFormer-GPT or a UniLM model",
        description="Prints each text with what the model goes on with, a line each; of a UniLM model its answer.",
    )
    parser.add_argument(
        "model", help="original folder, folder written by save_to_preset, or .keras file"
    )
    add_texts(parser, "今天天气")
    parser.add_argument(
        "--sampler",
        choices=SAMPLERS,
        help="how the next token is chosen (by the options below, greedy without any)",
    )
    parser.add_argument("--temperature", type=float, help="of the sampling (1)")
    parser.add_argument("--top-k", type=int, help="draw from so many of the likeliest tokens (5)")
    parser.add_argument(
        "--top-p", type=float, help="draw from the likeliest tokens of this probability (0.95)"
    )
    parser.add_argument("--num-beams", type=int, help="search with so many beams (4)")
    parser.add_argument(
        "--length-penalty", type=float, default=1.0, help="of the search, 0 favours short texts (1)"
    )
    parser.add_argument("--seed", type=int, help="the same seed draws the same texts")
    parser.add_argument(
        "--max-length",
        type=int,
        help="most tokens of a text with what is generated (as the model was saved)",
    )
    parser.add_argument(
        "--min-new-tokens", type=int, default=0, help="tokens before the text may end (0)"
    )
    parser.add_argument("--dtype", help="dtype policy: float32, mixed_bfloat16, …")
    add_json(parser, "what is new in it")
    parser.set_defaults(run=run)


def run(args):
    """Runs the command; 0 when texts were generated."""
    from roformer_tf.cli.model_source import load_model
    from roformer_tf.models.fill_mask import check_top_k

    texts = read_texts(args)
    sampler = make_sampler(args)
    task, _ = load_model(args.model, "causal_lm", args.dtype)
    if args.top_k is not None:
        check_top_k(args.top_k, task.backbone.vocabulary_size)
    task.compile(sampler=sampler)
    options = {"max_length": args.max_length, "min_new_tokens": args.min_new_tokens}
    if args.json:
        options["strip_prompt"] = True
    for start in range(0, len(texts), BATCH_SIZE):
        part = texts[start : start + BATCH_SIZE]
        for text, generated in zip(part, task.generate(part, **options), strict=True):
            if args.json:
                print_json({"text": text, "generated": generated})
            else:
                print(generated, flush=True)
    return 0


def make_sampler(args):
    """The sampler that the options ask for.

    Raises:
        ValueError: if they contradict each other, or one makes no sense.
    """
    import keras_hub

    from roformer_tf.samplers import BeamSearchSampler

    asked = {"top_k": args.top_k, "top_p": args.top_p, "beam": args.num_beams}
    named = [name for name, value in asked.items() if value is not None]
    name = args.sampler or (named[0] if named else "greedy")
    if set(named) - {name}:
        raise ValueError(
            "`--top-k`, `--top-p` and `--num-beams` are of one sampler each: give one of them. "
            f"Received: --sampler {name}, and options of {', '.join(named)}"
        )
    drawn = {"temperature": args.temperature, "seed": args.seed}
    if name in ("greedy", "beam"):
        given = [f"--{option}" for option, value in drawn.items() if value is not None]
        if given:
            raise ValueError(
                f"{' and '.join(given)}: nothing is drawn at random by the sampler {name!r}. Take one that draws, by "
                "--top-p, --top-k or --sampler random."
            )
    check_sampling(args.temperature, args.top_p)
    drawn["temperature"] = 1.0 if args.temperature is None else args.temperature

    def given_or(value, default):
        return default if value is None else value

    samplers = keras_hub.samplers
    if name == "top_k":
        return samplers.TopKSampler(k=given_or(args.top_k, 5), **drawn)
    if name == "top_p":
        return samplers.TopPSampler(p=given_or(args.top_p, 0.95), **drawn)
    if name == "random":
        return samplers.RandomSampler(**drawn)
    if name == "beam":
        return BeamSearchSampler(given_or(args.num_beams, 4), args.length_penalty)
    return samplers.GreedySampler()


def check_sampling(temperature, top_p):
    """Refuses what gives no distribution to draw from; `None` is the default of each."""
    if temperature is not None and not 0 < temperature < float("inf"):
        raise ValueError(
            "--temperature must be positive; for the likeliest token take --sampler greedy. "
            f"Received: --temperature {temperature:g}"
        )
    if top_p is not None and not 0 < top_p <= 1:
        raise ValueError(f"--top-p must be above 0 and at most 1. Received: --top-p {top_p:g}")
