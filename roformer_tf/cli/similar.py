"""Samples candidates for each text and prints the most similar ones, with cosine similarity."""

import itertools

from roformer_tf.cli import shared

HELP = "generate paraphrases with RoFormer-Sim"


def add_arguments(parser):
    shared.add_model(parser, "original RoFormer-Sim folder, folder written by save_to_preset")
    shared.add_texts(parser, "广州和深圳哪个好？")
    parser.add_argument("-n", type=int, default=100, help="candidates per text (100)")
    parser.add_argument("-k", type=int, default=20, help="paraphrases to keep (20)")
    parser.add_argument("--top-p", type=float, default=0.95, help="nucleus size (0.95)")
    parser.add_argument("--temperature", type=float, default=1.0, help="sampling temperature (1)")
    parser.add_argument("--seed", type=int, help="seed of the sampling")
    parser.add_argument(
        "--max-length",
        type=int,
        default=128,
        help="maximum tokens of a text and its paraphrase (128)",
    )
    shared.add_json(parser, "its paraphrases with their similarity")


def run(args):
    import keras_hub

    from roformer_tf.cli.generate import check_sampling

    windows = shared.read_texts(args)
    check_sampling(args.temperature, args.top_p)
    sim, _ = shared.load_model(args.model, "sim", args.dtype)
    sim.compile(
        sampler=keras_hub.samplers.TopPSampler(
            p=args.top_p, temperature=args.temperature, seed=args.seed
        )
    )
    for text in itertools.chain.from_iterable(windows):
        similar = sim.similar(text, n=args.n, k=args.k, max_length=args.max_length)
        if args.json:
            answers = [{"text": t, "similarity": s} for t, s in similar]
            shared.print_json({"text": text, "similar": answers})
            continue
        rows = [(f"{similarity:.3f}", other) for other, similarity in similar]
        rows = rows or [("–", "only the text itself was generated; try a larger -n")]
        shared.print_table(rows, title=text)
