"""`python -m roformer_tf translate MODEL TEXT…`: translations by a `RoFormerSeq2SeqLM`."""

from roformer_tf.cli.text_arguments import add_json, add_texts, print_json, read_texts


def add_parser(subparsers):
    """Adds the command to the command line."""
    parser = subparsers.add_parser(
        "translate",
        help="translate texts",
        description="Prints a translation for each text, one a line, by beam search.",
    )
    parser.add_argument("model", help="folder written by save_to_preset, or .keras file")
    add_texts(parser, "'Two dogs run in the snow.'")
    parser.add_argument("--beams", type=int, default=4, help="width of the search (4)")
    parser.add_argument("--length-penalty", type=float, default=0.6, help="its exponent (0.6)")
    parser.add_argument(
        "--max-length", type=int, help="the most tokens of a translation (50 more than the text)"
    )
    parser.add_argument("--batch-size", type=int, default=32, help="texts at once (32)")
    parser.add_argument("--dtype", help="dtype policy: float32, mixed_bfloat16, …")
    add_json(parser, "its translation")
    parser.set_defaults(run=run)


def run(args):
    """Runs the command; 0 when all texts are translated."""
    from roformer_tf.cli.model_source import load_model
    from roformer_tf.models import translate
    from roformer_tf.samplers import BeamSearchSampler

    texts = read_texts(args, keep_blank=True)  # line by line beside the input
    task, _ = load_model(args.model, "seq_2_seq_lm", args.dtype)
    task.compile(sampler=BeamSearchSampler(args.beams, args.length_penalty), jit_compile=False)
    translations = translate(task, texts, args.batch_size, args.max_length)
    if args.json:
        for text, translation in zip(texts, translations):
            print_json({"text": text, "translation": translation})
    else:
        print("\n".join(translations))
    return 0
