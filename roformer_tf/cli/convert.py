"""Converts a RoFormer v1 checkpoint between the original layout (bert_config.json,
bert_model.ckpt.*) and Hugging Face's (config.json, model.safetensors).
"""

HELP = "convert between the original layout and Hugging Face's"


def add_arguments(parser):
    parser.add_argument(
        "source", help="folder in either layout, .zip file of one, or hf://user/name[@revision]"
    )
    parser.add_argument("target", help="folder to write")
    parser.add_argument(
        "--to", choices=("original", "huggingface"), help="default: the layout that SOURCE is not"
    )
    parser.add_argument("--family", help="roformer, if the family is not recognized")
    parser.add_argument("--overwrite", action="store_true", help="replace a model in TARGET")


def run(args):
    from roformer_tf.checkpoint import convert

    report = convert(
        args.source, args.target, to=args.to, family=args.family, overwrite=args.overwrite
    )
    print(f"{report.folder}: {len(report.converted)} variables in the {report.layout} layout")
    if report.dropped:
        names = ", ".join(report.dropped)
        print(f"dropped, since the layout cannot hold them ({len(report.dropped)}): {names}")
