"""Prints one translation per line, found by beam search."""

from roformer_tf.cli import shared

HELP = "translate texts"


def add_arguments(parser):
    shared.add_model(parser, "folder written by save_to_preset")
    shared.add_texts(parser, "'Two dogs run in the snow.'")
    parser.add_argument("--num-beams", type=int, default=4, help="number of beams (4)")
    parser.add_argument(
        "--length-penalty", type=float, default=0.6, help="exponent of the length penalty (0.6)"
    )
    parser.add_argument(
        "--max-length", type=int, help="maximum tokens of a translation (the text's plus 50)"
    )
    parser.add_argument("--batch-size", type=int, default=32, help="texts per batch (32)")
    shared.add_json(parser, "its translation")


def run(args):
    from roformer_tf.models import translate
    from roformer_tf.samplers import BeamSearchSampler

    windows = shared.read_texts(args, keep_blank=True)  # one line of output per line of input
    task, _ = shared.load_model(args.model, "seq_2_seq_lm", args.dtype)
    task.compile(sampler=BeamSearchSampler(args.num_beams, args.length_penalty), jit_compile=False)
    for texts in windows:
        translations = translate(task, texts, args.batch_size, args.max_length)
        for text, translation in zip(texts, translations):
            if args.json:
                shared.print_json({"text": text, "translation": translation})
            else:
                print(translation, flush=True)
