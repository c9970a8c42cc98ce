"""`python -m benchmarks`: measures ours, a bare TensorFlow model, bert4keras and Hugging Face side by side."""

import argparse
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

from benchmarks import machine, measure, pretraining_measure, records

FOLDER = Path(__file__).resolve().parent


def main():
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="the same as --size small")
    parser.add_argument(
        "--size",
        choices=("base", "small"),
        default="base",
        help="small sizes are to see that it works",
    )
    parser.add_argument(
        "--only", default=",".join(measure.PARTS), help="parts, separated by commas: %(default)s"
    )
    parser.add_argument("--models", help="some of the models, separated by commas")
    parser.add_argument("--repeats", type=int, default=5, help="timed runs of each (%(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--data",
        type=Path,
        default=pretraining_measure.Setting.data,
        help="folder of .jsonl or .jsonl.xz files with `text`, for end_to_end (%(default)s)",
    )
    parser.add_argument(
        "--end-to-end-model",
        choices=pretraining_measure.END_TO_END_MODELS,
        help="layers x width of end_to_end's model (6x384)",
    )
    parser.add_argument(
        "--output",
        type=Path,
        help="file (benchmarks/results/libraries.jsonl); parts that it holds and that are not measured now stay in it",
    )
    parser.add_argument(
        "--report",
        type=Path,
        metavar="RESULTS",
        help="measures nothing: writes README.md's tables and the chart from kept results",
    )
    arguments = parser.parse_args()
    if arguments.report:
        from benchmarks import report

        report.write(records.read_parts(arguments.report), FOLDER)
        return
    parts = arguments.only.split(",")
    unknown = set(parts) - set(measure.PARTS)
    if unknown:
        parser.error(f"--only takes {', '.join(measure.PARTS)}. Received: {', '.join(unknown)}")
    output = arguments.output or records.RESULTS / "libraries.jsonl"
    quick = arguments.quick or arguments.size == "small"
    setting = pretraining_measure.SMALL if quick else pretraining_measure.Setting()
    setting = replace(setting, data=arguments.data)
    if arguments.end_to_end_model:
        sizes = pretraining_measure.END_TO_END_MODELS[arguments.end_to_end_model]
        setting = replace(setting, end_to_end_sizes=sizes)
    measurement = measure.Measurement(
        setting,
        arguments.repeats,
        arguments.seed,
        quick=quick,
        say=lambda line: print(line, flush=True),
        # all the time: an error at the end costs no more than the end
        keep=lambda: records.write_parts(output, record),
        models=arguments.models and arguments.models.split(","),
    )
    record = records.read_parts(output) if output.exists() else {"runs": {}, "results": {}}
    if record.get("sizes", asdict(measurement.sizes)) != asdict(measurement.sizes):
        parser.error(f"{output} holds results of another size. Name another file with --output")
    record.update(sizes=asdict(measurement.sizes), machine=machine.describe())
    measurement.versions.update(record.get("versions", {}))
    record["versions"] = measurement.versions
    for part in parts:
        results = record["results"][part] = {}
        run = record["runs"][part] = {
            "command": records.command("benchmarks", sys.argv[1:]),
            "date": records.date(),
            "seed": arguments.seed,
            "repeats": arguments.repeats,
            "load_average_before": machine.load_average(),
        }
        start = time.monotonic()
        measurement.run(part, results)
        run["load_average_after"] = machine.load_average()
        run["minutes"] = round((time.monotonic() - start) / 60, 1)
        records.write_parts(output, record)
    print(f"kept in {output}")


if __name__ == "__main__":
    main()
