"""Runs the release's own 27 scripts on roformer_tf.compat, and writes which of them run.

    python experiments/release_scripts.py --scripts FOLDER --output build/scripts

FOLDER holds checkouts of ZhuiyiTechnology/roformer, roformer-sim and roformer-v2 and of
bojone/GlobalPointer, in folders whose names end so. Nothing of them is part of this repository.

Each script is copied, and these of its lines are changed:

* import lines: `from bert4keras…` and `from keras…` become `from roformer_tf.compat.…`;
* paths below the authors' home folder, which become paths of small data made here;
* `epochs`, `steps_per_epoch` and `batch_size`: one epoch of a few steps.

LAC, a segmenter that does not install any more, is a stub of two lines around jieba. Models are
random, of two layers. A script counts as running if it ends without an error: with training,
evaluation in its callback, saving of weights, and predictions written to files. Scripts that can be
imported are run again in that way, so that they load the weights that they saved. A script of
`CHANGES` is run as it is, and then with those changes.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HOME = "/root" + "/"  # of the scripts' authors
RESULTS = ROOT / "experiments" / "results" / "release_scripts.jsonl"
IMPORTS = re.compile(r"^( *from) (bert4keras|keras)\b", re.MULTILINE)
NUMBERS = {"epochs": 1, "steps_per_epoch": 3, "batch_size": 4}
STUB = "import jieba\n\n\nclass LAC:\n    def __init__(self, mode): pass\n    run = staticmethod(jieba.lcut)\n"
SENTENCES = [
    "今天天气不错，我们去公园散步。",
    "北京大学的图书馆在湖边，学生很多。",
    "这家酒店的服务很好，房间也干净。",
    "微信和支付宝哪个好？",
    "他在上海的银行工作了十年！",
    "物流很快，包装完整，下次还来。",
    "这部电影的音乐很美，故事一般。",
    "老师说明天有考试，请大家准备。",
]
# What a script has beside its top level, to be called once it has run
CALLS = {"test/generate.py": "gen_synonyms('今天天气不错', 2, 2)"}
# The CLUE scripts need a model that has learned: they write no file for one without a right answer,
# and the first of them fails at an entity on [CLS], which a random model finds. The last script
# draws its tasks, and each of them has to be drawn.
MORE_NUMBERS = {
    "clue/cluener.py": {"epochs": 60},
    "clue/cmrc2018.py": {"epochs": 20},
    "clue/tnews.py": {"epochs": 20},
    "multi-task/main.py": {"steps_per_epoch": 200},
}
# What must change in a script that cannot run: the file, what is replaced, by what, and why
CHANGES = {
    "multi-task/main.py": (
        "multi-task/snippets.py",
        re.compile(r"^class Adam\(.*?(?=^class )", re.MULTILINE | re.DOTALL),
        "from roformer_tf.compat.bert4keras.optimizers import BertAdam as Adam\n\n\n",
        "its `snippets.py` has an optimizer of Keras 2, which Keras 3 cannot call. In place of the "
        "class `Adam` there write "
        "`from roformer_tf.compat.bert4keras.optimizers import BertAdam as Adam`",
    )
}


def lines(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(r, ensure_ascii=False) + "\n" for r in rows), "utf-8")


def dump(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, ensure_ascii=False), "utf-8")


def pairs():
    return list(zip(SENTENCES, SENTENCES[1:] + SENTENCES[:1]))


def make_models(home, folder):
    """Writes random models of the kinds that the scripts load."""
    from roformer_tf.compat.bert4keras.models import build_transformer_model

    text = "".join(SENTENCES) + "无效答案今夜画蛇添足一心意。，！？：；、_[]0123456789"
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *dict.fromkeys(text)]
    tokens += ["天气", "公园", "北京大学", "酒店", "##a", "##b"]
    kinds = {
        "chinese_L-12_H-768_A-12": ("bert", {}),
        "chinese_simbert_L-12_H-768_A-12": ("bert", {"with_pool": "linear"}),
        "chinese_wobert_plus_L-12_H-768_A-12": ("bert", {}),
        "chinese_roformer_L-12_H-768_A-12": ("roformer", {}),
        "chinese_roformer-char_L-12_H-768_A-12": ("roformer", {"with_pool": "linear"}),
        "chinese_roformer-gpt-char_L-12_H-768_A-12": ("roformer", {}),
        "chinese_roformer-sim-char_L-12_H-768_A-12": ("roformer", {"with_pool": "linear"}),
        "chinese_roformer-sim-char-ft_L-12_H-768_A-12": ("roformer", {"with_pool": "linear"}),
        "chinese_roformer-v2-char_L-6_H-384_A-6": ("roformer_v2", {}),
        "chinese_roformer-v2-char_L-12_H-768_A-12": ("roformer_v2", {}),
        "chinese_roformer-v2-char_L-24_H-1024_A-16": ("roformer_v2", {}),
    }
    for name, (model, options) in kinds.items():
        config = {
            "vocab_size": len(tokens),
            "hidden_size": 32,
            "num_attention_heads": 2,
            "num_hidden_layers": 2,
            "intermediate_size": 64,
            "hidden_act": "relu" if model == "roformer_v2" else "gelu",
            "hidden_dropout_prob": 0.1,
            "attention_probs_dropout_prob": 0.1,
            "max_position_embeddings": 1024,
            "type_vocab_size": 2,
        }
        path = home / "kg" / "bert" / name
        dump(path / "bert_config.json", config)
        (path / "vocab.txt").write_text("".join(f"{t}\n" for t in tokens), "utf-8")
        base = build_transformer_model(
            path / "bert_config.json", model=model, with_mlm="linear",
            return_keras_model=False, **options
        )  # fmt: skip
        base.save_weights_as_checkpoint(path / "bert_model.ckpt")
        if "v2-char_L-6" in name:  # what another script leaves to the multi-task training
            earlier = folder / "roformer-v2" / "v3c7s"
            earlier.mkdir(parents=True, exist_ok=True)
            base.model.save_weights(earlier / "roformer.v2.4000.weights")


def make_data(home, folder):
    """Writes small data in the form that each script reads."""
    clue = home / "clue" / "datasets"
    for split in ("train", "dev", "test", "test1.0", "test1.1"):
        repeats = 20 if split == "train" else 1  # enough to learn them by heart
        for task, labels in (("afqmc", "01"), ("tnews", ["100", "101"]), ("iflytek", "01")):
            rows = [
                {"id": i, "sentence": a, "sentence1": a, "sentence2": b, "label": labels[i % 2]}
                for i, (a, b) in enumerate(pairs())
            ]
            if task == "iflytek" and split == "dev":  # or none of 119 classes is right
                rows = [
                    {"id": i, "sentence": a, "label": i} for i, a in zip(range(119), SENTENCES * 15)
                ]
            lines(clue / task / f"{split}.json", rows * repeats)
        for task in ("cmnli", "ocnli"):
            labels = ["contradiction", "entailment", "neutral"]
            rows = [
                {"id": i, "sentence1": a, "sentence2": b, "label": labels[i % 3]}
                for i, (a, b) in enumerate(pairs())
            ]
            lines(clue / task / f"{split}.json", rows)
            lines(clue / task / "train.50k.json", rows)
        rows = [
            {"id": i, "keyword": [a[:2], a[2:4]], "abst": b, "label": str(i % 2)}
            for i, (a, b) in enumerate(pairs())
        ]
        lines(clue / "csl" / f"{split}.json", rows)
        rows = [
            {
                "id": i,
                "text": a,
                "label": ["false", "true"][i % 2],
                "target": {"span1_index": 0, "span1_text": a[:2], "span2_index": 4, "span2_text": a[4]},
            }
            for i, a in enumerate(SENTENCES)
        ]  # fmt: skip
        lines(clue / "wsc" / f"{split}.json", rows)
        entities = [
            {"text": a, "label": {["name", "address"][i % 2]: {a[2:4]: [[2, 3]]}}}
            for i, a in enumerate(SENTENCES)
        ]
        if split.startswith("test"):
            entities = [{"text": a} for a in SENTENCES]
        lines(clue / "cluener" / f"{split}.json", entities * repeats)
        lines(home / "ner" / "cluener" / f"{split}.json", entities)
        parts = [a[:4] for a in SENTENCES[:4]]
        choices = [
            [
                [a, b],
                [{"id": i, "question": "哪个好？", "choice": parts[:], "answer": parts[i % 4]}],
            ]
            for i, (a, b) in enumerate(pairs())
        ]
        names = [f"{kind}-{split}" for kind in "md"] if split in ("train", "dev") else [split]
        for name in names:
            dump(clue / "c3" / f"{name}.json", choices)
        idioms = [f"一心{c}意" for c in "今天我们去公园散步"] + ["画蛇添足"]
        rows = [
            {
                "candidates": idioms[:10],
                "content": [f"{a}#idiom{i:06d}#{b}#idiom{i + 50:06d}#。"],
            }
            for i, (a, b) in enumerate(pairs())
        ]
        lines(clue / "chid" / f"{split}.json", rows)
        answers = {f"#idiom{i:06d}#": i % 10 for i in range(100)}
        dump(clue / "chid" / f"{split}_answer.json", answers)
        rows = [
            {
                "paragraphs": [
                    {
                        "context": a * 3,
                        "qas": [
                            {
                                "id": str(i),
                                "question": "在哪里？",
                                "answers": [{"text": a[2:4], "answer_start": 2}],
                            }
                        ],
                    }
                ]
            }
            for i, a in enumerate(SENTENCES)
        ]
        dump(clue / "cmrc2018" / f"{split}.json", {"data": rows * repeats})
        rows = [
            {
                "text": a,
                "entities": [{"start_idx": 2, "end_idx": 3, "type": ["dis", "sym"][i % 2]}],
            }
            for i, a in enumerate(SENTENCES)
        ]
        dump(home / "ner" / "CMeEE" / f"CMeEE_{split}.json", rows)
        text = "\n\n".join(
            "\n".join(
                f"{c} {'B-LOC' if j == 2 else 'I-LOC' if j == 3 else 'O'}" for j, c in enumerate(a)
            )
            for a in SENTENCES
        )
        path = home / "ner" / "china-people-daily-ner-corpus" / f"example.{split}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
        rows = [
            {"A": a, "B": b, "C": SENTENCES[i - 3], "label": "BC"[i % 2]}
            for i, (a, b) in enumerate(pairs())
        ]
        name = {"dev": "valid"}.get(split, split)
        lines(folder / "roformer" / "CAIL2019-SCM" / f"{name}.json", rows)
        for task in ("ATEC", "BQ", "LCQMC", "PAWSX", "STS-B", "SOHU21-SSB"):
            path = home / "senteval_cn" / task / f"{task}.{name}.data"
            path.parent.mkdir(parents=True, exist_ok=True)
            rows = (f"{a}\t{b}\t{i % 2}\n" for i, (a, b) in enumerate(pairs()))
            path.write_text("".join(rows), "utf-8")
    rows = [
        {"sentence1": a, "sentence2": b, "gold_label": ["entailment", "neutral"][i % 2]}
        for i, (a, b) in enumerate(pairs())
    ]
    lines(home / "cnsd" / "cnsd-snli" / "train.jsonl", rows)
    pretraining = home / "data_pretrain"
    lines(pretraining / "data_shuf.json", [{"text": "".join(SENTENCES)}] * 4)
    lines(pretraining / "synonyms_shuf.json", [{"text": a, "synonyms": [b]} for a, b in pairs()])
    rows = [{"text_a": a, "text_b": b} for a, b in pairs()]
    lines(pretraining / "synonym_answers_shuf.json", rows)
    lines(pretraining / "synonym" / "synonym_gen_2_shuf.json", rows)
    rows = [{"content": "".join(SENTENCES)}] * 4
    lines(pretraining / "wudao" / "WuDaoCorpus_me_shuf" / "1.json", rows)
    rows = [
        {"text": a, "title": a[:4], "label": i % 2, "num_labels": 2}
        for i, a in enumerate(SENTENCES)
    ]
    for task in (
        "文本分类/主题分类/IFLYTEK长文本分类",
        "文本分类/主题分类/TNEWS短新闻",
        "文本分类/主题分类/THUCNews新闻分类",
    ):
        lines(home / "数据中心" / task / "train.json", rows)
    rows = [
        {"question": "在哪里？", "passage": a, "title": "", "answers": [[a[2:4], 2]]}
        for a in SENTENCES
    ]
    lines(home / "数据中心" / "阅读理解" / "抽取式" / "WebQA" / "train.json", rows)


def change(text, home, numbers):
    """Returns a script with its import lines, paths and numbers changed, and the import lines."""
    changed = [line for line in text.splitlines() if IMPORTS.match(line)]
    text = IMPORTS.sub(r"\1 roformer_tf.compat.\2", text).replace(HOME, f"{home}/")
    for name, value in numbers.items():
        text = re.sub(rf"\b({name} ?= ?)\d+", rf"\g<1>{value}", text)
    return text, changed


def find_repositories(scripts):
    """Returns the folder of each repository in a folder of checkouts."""
    names = ("roformer", "roformer-sim", "roformer-v2", "GlobalPointer")
    found = {}
    for name in names:
        ends = re.compile(rf"(^|[^\w-]){re.escape(name)}$")
        folders = [path for path in Path(scripts).iterdir() if ends.search(path.name)]
        if len(folders) != 1:
            raise SystemExit(f"`--scripts` must hold one checkout of {name}. Found: {folders}")
        found[name] = folders[0]
    return found


def value_for(values, name):
    """Returns the value of the key that a script's name ends in, or `None`."""
    return next((value for key, value in values.items() if name.endswith(key)), None)


def run(folder, name, options, timeout):
    """Runs one script, and again with its `CHANGES` if it fails. Returns its record."""
    record = {"script": name, **options, **run_once(folder, name, timeout)}
    changes = value_for(CHANGES, name)
    if changes and not record["main"]:
        part, old, new, _ = changes
        path = folder / name.split("/")[0] / part
        text = path.read_text("utf-8")
        path.write_text(old.sub(new, text), "utf-8")
        changed = run_once(folder, name, timeout)
        path.write_text(text, "utf-8")
        record |= {f"{key}_changed": value for key, value in changed.items()}
    return record


def run_once(folder, name, timeout):
    """Runs a script in a process of its own. Returns what it came to."""
    script, record = folder / name, {}
    environment = {
        **os.environ,
        "PYTHONPATH": f"{folder.parent / 'stubs'}:{ROOT}",
        "PYTHONWARNINGS": "default",
        "CUDA_VISIBLE_DEVICES": "-1",
    }
    call = CALLS.get("/".join(script.parts[-2:]), "None")
    text = script.read_text("utf-8")
    again = re.search(r"model\.load_weights\('(?!\.\./)|encoder\.load", text)  # its own
    runs = ["__main__"] + (["imported"] if again else [])
    start = time.monotonic()
    for run_name in runs:
        program = (
            f"import runpy, sys; sys.path.insert(0, {str(script.parent)!r}); "
            f"names = runpy.run_path({script.name!r}, run_name={run_name!r}); eval({call!r}, names)"
        )
        log = script.with_suffix(f".{run_name.strip('_')}.log")
        with open(log, "w") as file:
            try:
                code = subprocess.run(
                    [sys.executable, "-c", program],
                    cwd=script.parent,
                    env=environment,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    timeout=timeout,
                ).returncode
            except subprocess.TimeoutExpired:
                code = "timeout"
        record[run_name.strip("_")] = code == 0
        if code != 0:
            errors = re.findall(r"^\w+(?:Error|Exception|Exit)\b.*", log.read_text("utf-8"), re.M)
            record["error"] = errors[-1][:300] if errors else str(code)
            break
    record["seconds"] = round(time.monotonic() - start)
    return record


def table(records):
    """Returns the Markdown table of the records."""
    rows = ["| script | import lines changed | runs | loads what it saved |", "|---|---|---|---|"]
    for record in records:
        runs = "yes"
        if record.get("main_changed"):
            runs = f"with a change: {value_for(CHANGES, record['script'])[-1]}"
        elif not record["main"]:
            runs = f"no: {record.get('error_changed', record['error'])}"
        again = {True: "yes", False: "no", None: ""}[record.get("imported")]
        rows.append(f"| {record['script']} | {record['imports']} | {runs} | {again} |")
    return "\n".join(rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scripts", required=True, help="folder of the four checkouts")
    parser.add_argument("--output", default="build/scripts", help="folder to run them in")
    parser.add_argument("--only", nargs="+", default=[""], help="parts of names of scripts to run")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--timeout", type=int, default=600, help="seconds for a script")
    parser.add_argument("--write", action="store_true", help=f"keep the records in {RESULTS.name}")
    arguments = parser.parse_args()
    output = Path(arguments.output).resolve()
    home, folder = output / "home", output / "repositories"
    (output / "stubs").mkdir(parents=True, exist_ok=True)
    (output / "stubs" / "LAC.py").write_text(STUB)
    if not (home / "kg").exists():
        make_models(home, folder)
    make_data(home, folder)
    tasks = []
    for repository, source in find_repositories(arguments.scripts).items():
        for path in sorted(source.rglob("*.py")):
            name = f"{repository}/{path.relative_to(source)}"
            numbers = {**NUMBERS, **(value_for(MORE_NUMBERS, name) or {})}
            text, imports = change(path.read_text("utf-8"), home, numbers)
            copy = folder / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(text, "utf-8")
            is_part = path.name == "snippets.py" or re.match(r"t\d{4}_", path.name)
            if not is_part and any(part in name for part in arguments.only):
                tasks.append((name, {"imports": len(imports)}))
    with ThreadPoolExecutor(arguments.workers) as pool:
        futures = [pool.submit(run, folder, name, o, arguments.timeout) for name, o in tasks]
        records = []
        for future in futures:
            records.append(future.result())
            print(json.dumps(records[-1], ensure_ascii=False), flush=True)
    print(table(records))
    print(f"{sum(record['main'] for record in records)} of {len(records)} scripts run unchanged")
    if arguments.write:  # in place of those kept of the same scripts
        old = RESULTS.read_text("utf-8").splitlines() if RESULTS.exists() else []
        kept = {record["script"]: record for record in [*map(json.loads, old), *records]}
        lines(RESULTS, kept.values())


if __name__ == "__main__":
    main()
