"""`python -m roformer_tf translate MODEL TEXT…`: translates texts with a `RoFormerSeq2SeqLM`."""

from roformer_tf.cli.arguments import add_json, add_model, add_texts, print_json, read_texts


def add_parser(subparsers):
    """Adds the command to the command line."""
    parser = subparsers.add_parser(
        "translate",
        help="translate texts",
        description="Prints one translation per line, found by beam search.",
    )
    add_model(parser, "folder written by save_to_preset")
    add_texts(parser, "'Two dogs run in the snow.'")
    parser.add_argument("--num-beams", type=int, default=4, help="number of beams (4)")
    parser.add_argument(
        "--length-penalty", type=float, default=0.6, help="exponent of the length penalty (0.6)"
    )
    parser.add_argument(
        "--max-length", type=int, help="maximum tokens of a translation (the text's plus 50)"
    )
    parser.add_argument("--batch-size", type=int, default=32, help="texts per batch (32)")
    add_json(parser, "its translation")
    parser.set_defaults(run=run)


def run(args):
    """Runs the command and returns the exit status."""
    from roformer_tf.cli.model_source import load_model
    from roformer_tf.models import translate
    from roformer_tf.samplers import BeamSearchSampler

    texts = read_texts(args, keep_blank=True)  # one line of output per line of input
    task, _ = load_model(args.model, "seq_2_seq_lm", args.dtype)
    task.compile(sampler=BeamSearchSampler(args.num_beams, args.length_penalty), jit_compile=False)
    translations = translate(task, texts, args.batch_size, args.max_length)
    if args.json:
        for text, translation in zip(texts, translations):
            print_json({"text": text, "translation": translation})
    else:
        print("\n".join(translations))
    return 0
