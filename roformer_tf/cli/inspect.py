"""Shows what a checkpoint holds: family, masking and how they are known, settings, variables with
shapes, and what is missing or unknown.
"""

import json

HELP = "show what a checkpoint holds"


def add_arguments(parser):
    parser.add_argument(
        "path",
        help="original or Hugging Face folder, folder written by save_to_preset, .zip file of one, "
        "hf://user/name[@revision], or prefix of a TF1 checkpoint",
    )
    parser.add_argument(
        "--family", help="override the family: roformer, roformer_v2, bert or nezha"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")


def run(args):
    from roformer_tf.checkpoint import inspect_checkpoint

    report = inspect_checkpoint(args.path, family=args.family)
    if args.json:
        print(json.dumps(report.to_dict(), indent=2, ensure_ascii=False))
    else:
        report.print()
    return 0 if report.complete else 1
