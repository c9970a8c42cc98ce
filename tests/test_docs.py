"""Every block of code on the site and in the READMEs runs, and every link leads to something."""

import ast
import contextlib
import functools
import gc
import importlib.util
import inspect
import io
import re
import runpy
import shlex
import tomllib

import keras
import pytest

from roformer_tf.__main__ import COMMANDS, main, make_parser
from roformer_tf.pretraining import PretrainingSettings
from roformer_tf.pretraining import settings as settings_file
from tests.pages import DOCS, LANGUAGES, ROOT, blocks, name_of, pages

PAGE = """# Page

```console
$ echo a  b | cat
of an earlier run
$ printf '\\n1\\n2'
```

```python
$ no command
```
"""
PAGES = [pytest.param(page, id=name_of(page)) for page in pages()]
NOTEBOOKS = runpy.run_path(DOCS / "make_notebooks.py")["pages_to_make"]()
TRANSLATED = {  # page: that of which it is the translation
    ROOT / "README.zh.md": ROOT / "README.md",
    **{
        page: DOCS / page.relative_to(DOCS / "zh")
        for page in (DOCS / "zh").rglob("*.md")
        if page.name != "moving_from_bert4keras.md"  # tests/compat/test_page.py
    },
}
CHINESE = {"good": "好评", "positive": "好评", "bad": "差评", "negative": "差评"}  # labels
# Each of their models is trained for a step or two, and tracing these takes ten times as long. The
# graphs of every task are tested with the models.
FEW_STEPS = (
    *("answers.md", "recipes.md", "similarity.md", "long_documents.md"),
    *("generate.md", "load.md", "search.md", "start.md"),
)
WITH_PYTHON = [
    pytest.param(
        page, id=name_of(page), marks=[pytest.mark.eager] if page.name in FEW_STEPS else []
    )
    for page in pages()
    if blocks(page, "python")
    and (page.parent.name != "layers" or page.name == "README.md")
    and page.name != "moving_from_bert4keras.md"  # tests/compat/test_page.py
    and page not in NOTEBOOKS  # tests/test_notebooks.py runs all their blocks
    and page not in TRANSLATED  # has the code of its page
    and page != DOCS / "README.md"  # has the first block of README.md
    # tests/packaging/test_wheel.py, which builds what Git lists
    and (page != ROOT / "README.md" or not (ROOT / ".git").exists())
]
WITH_COMMANDS = [pytest.param(p, id=name_of(p)) for p in pages() if blocks(p, "console")]
LINKED = ("benchmarks", "checkpoints", "experiments", "CONTRIBUTING.md", "CHANGELOG.md")
# a word in a block of Python, and the package that the block then needs
OPTIONAL = {
    "pandas": "pandas",
    "export_onnx": "tf2onnx",
    "litert": "ai_edge_litert",
    "tensorflow_text": "tensorflow_text",
}
# the text that they draw may differ with the processor, after a rounding
SAMPLED = ("generate", "similar")


@pytest.fixture
def refresh(repository, monkeypatch):
    """Function that runs the program on a page."""

    def refresh(page):
        monkeypatch.setattr("sys.argv", ["run_commands.py", str(page)])
        runpy.run_path(repository / "docs" / "run_commands.py", run_name="__main__")

    return refresh


def test_outputs_are_below_their_commands(refresh, tmp_path):
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    for _ in "12":  # the second run replaces the output of the first
        refresh(page)
        expected = PAGE.replace("of an earlier run", "a b").replace("2'\n", "2'\n\n1\n2\n")
        assert page.read_text() == expected


def test_a_page_is_unchanged_if_a_command_fails(refresh, tmp_path):
    page = tmp_path / "page.md"
    page.write_text(before := PAGE.replace("| cat", "&& cat nothing.txt"))
    with pytest.raises(SystemExit, match="cat nothing.txt` failed.*\n.*nothing.txt"):
        refresh(page)
    assert page.read_text() == before and len(list(tmp_path.iterdir())) == 1


@pytest.fixture
def copy_of_the_repository(tmp_path, monkeypatch):
    """The current folder has what the pages read, and is free for what they write."""
    for name in ("checkpoints", "examples", "experiments", "README.md"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_block_has_a_language():
    unknown = [
        (name_of(page), language, code.splitlines()[0])
        for page in pages()
        for language, code in blocks(page)
        if language not in LANGUAGES
    ]
    assert not unknown


@pytest.fixture
def names():
    """The names that the blocks of a page define; their models do not outlive the page."""
    names = {"__name__": "__main__"}
    yield names
    names.clear()
    keras.backend.clear_session()
    gc.collect()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # a reader's Python does not stop at them
@pytest.mark.parametrize("page", WITH_PYTHON)
def test_python_runs(page, copy_of_the_repository, names):
    """The blocks of a page run one after the other, with the names of those before."""
    lacking = set()
    for block in blocks(page, "python"):
        needed = {package for word, package in OPTIONAL.items() if word in block}
        if missing := {package for package in needed if not importlib.util.find_spec(package)}:
            lacking |= missing
            continue
        exec(compile(block, str(page), "exec"), names)
    if page.name == "answers.md":
        assert "张三在上海，李四在天津。"[names["start"] : names["end"]] == names["text"]
    if page.name == "generation.md":
        assert names["gpt"].generate("今天", max_length=9).startswith("今天")
    if page.name == "multi_task_training.md":
        assert names["best"] == names["result"].classifiers["reviews"].classify("房间干净")[0]
        assert names["best"][0] == "good" and names["best"][1] > 0.9
    if lacking:
        pytest.skip(f"ran but for the blocks that need {', '.join(sorted(lacking))}: make hf docs")


def test_the_site_starts_as_the_readme():
    readme, page = (
        [ast.dump(ast.parse(block)) for block in blocks(folder / "README.md", "python")]
        for folder in (ROOT, DOCS)
    )
    assert page == readme[:1]


@pytest.mark.parametrize("page", TRANSLATED, ids=name_of)
def test_a_translation_has_the_code_of_its_page(page):
    """But for comments and labels, so it runs as that does."""
    expected = blocks(TRANSLATED[page], "python")
    for english, chinese in CHINESE.items():
        expected = [block.replace(f'"{english}"', f'"{chinese}"') for block in expected]
    found = [ast.dump(ast.parse(block)) for block in blocks(page, "python")]
    assert found == [ast.dump(ast.parse(block)) for block in expected]


@functools.cache  # several pages show the same command
def printed_by(command):
    """What a command prints; those of this package run in this process."""
    words = shlex.split(command)
    if words[:3] != ["python", "-m", "roformer_tf"] or "|" in words:
        return runpy.run_path(DOCS / "run_commands.py")["run"](command)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert main(words[3:]) == 0, command
    return printed.getvalue()


def check_drawn(words, lines):
    """Checks what holds wherever the last digit of a probability differs."""
    if words[:4] == ["python", "-m", "roformer_tf", "generate"]:
        end = next(i for i, word in enumerate(words) if word.startswith("--"))
        assert all(line.startswith(text) for line, text in zip(lines, words[5:end], strict=True))
    else:
        assert lines
    if "--num-beams" in words:
        assert re.fullmatch("物流很快，.{5,}。", lines[0])
    if "What is the best way to lose weight?" in words:
        similarity, text = re.match("│ ([0-9.]+) │ (.*)│", lines[2]).groups()
        assert float(similarity) > 0.9 and "weight" in text


@pytest.mark.slow
@pytest.mark.eager  # each makes a call or two; their graphs are tested with the commands
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("page", WITH_COMMANDS)
def test_commands_print_what_the_page_shows(page, copy_of_the_repository, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")
    different = []
    for block in blocks(page, "console"):
        for command, shown in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.M):
            printed = printed_by(command)
            lines = [line.rstrip() for line in printed.rstrip("\n").splitlines()]
            if any(f"roformer_tf {name}" in command for name in SAMPLED):
                check_drawn(shlex.split(command), lines)
            elif lines != [line.rstrip() for line in shown.rstrip("\n").splitlines()]:
                different.append((command, printed))
    assert not different, "python docs/run_commands.py PAGE writes what the commands print now"


def test_commands_that_are_only_shown_exist():
    """Blocks of `sh` would take hours or other machines: their programs and arguments exist."""
    parser, wrong = make_parser(), []
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for page in pages():
        for line in "\n".join(blocks(page, "sh")).replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            while words and re.match(r"[A-Z_]+=", words[0]):
                del words[0]
            ends = [i for i, word in enumerate(words) if word in ("|", "&&", "<", ">")]
            words = words[: min(ends, default=None)]
            if words[:3] == ["python", "-m", "roformer_tf"]:
                try:
                    parser.parse_args(words[3:])
                except SystemExit:
                    wrong.append((name_of(page), line))
            elif words[:1] == ["make"]:
                found = all(f"\n{word}:" in makefile for word in words[1:])
                wrong += [] if found else [(name_of(page), line)]
            elif words[:1] == ["python"] and words[1].endswith(".py"):
                known = (ROOT / words[1]).exists() or words[1].startswith("build/")
                wrong += [] if known else [(name_of(page), line)]
    assert not wrong


def test_settings_on_the_pages_are_read():
    count = 0
    for page in pages():
        for block in blocks(page, "toml"):
            values = tomllib.loads(block)
            if "stages" in values:
                PretrainingSettings.from_dict(values)
                count += 1
    assert count > 0


def anchors(page):
    """The anchors of a page's headings, as the repository's host and MkDocs make them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    headings = re.findall(r"^#+ (.*)$", text, re.M)
    plain = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading) for heading in headings]
    slugs = [re.sub(r"[^\w\s-]", "", heading.lower()).strip() for heading in plain]
    return {re.sub(r"\s", "-", slug) for slug in slugs}


def test_links_lead_to_files():
    """Every relative link and picture exists, its anchor too, and every program that is named."""
    documents = pages()
    for name in LINKED:
        path = ROOT / name
        documents += [path] if path.suffix == ".md" else path.rglob("*.md")
    missing = []
    for page in documents:
        text = page.read_text(encoding="utf-8")
        prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
        for link in re.findall(r"\]\((?!\w+:)([^)\s]+)\)", prose):
            path, _, anchor = link.partition("#")
            target = page.parent / path if path else page
            if not target.exists():
                missing.append((name_of(page), link))
            elif anchor and target.suffix == ".md" and anchor not in anchors(target):
                missing.append((name_of(page), link))
        named = re.findall(r"\b((?:examples|experiments)/\w+\.(?:py|toml))", text)
        for name in named if page.name != "CHANGELOG.md" else ():  # which names older ones
            missing += [] if (ROOT / name).exists() else [(name_of(page), name)]
    assert not missing


def test_the_pages_made_from_the_code_are_up_to_date():
    made = runpy.run_path(DOCS / "make_reference.py")
    index = (DOCS / "reference" / "README.md").read_text(encoding="utf-8")
    assert index == made["index_page"](), "run `make docs-pages`"
    # how argparse wraps and abbreviates differs between versions of Python
    page = (DOCS / "reference" / "command_line.md").read_text(encoding="utf-8")
    missing = []
    for name in COMMANDS:
        assert f"\n## {name}\n" in page, "run `make docs-pages`"
        section = page.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
        words = re.sub(r"\s+", "", section)
        (commands,) = (a for a in make_parser()._actions if hasattr(a, "choices") and a.choices)
        for action in commands.choices[name]._actions:
            wanted = [*action.option_strings, action.help % vars(action) if action.help else ""]
            missing += [(name, w) for w in wanted if re.sub(r"\s+", "", w) not in words]
    assert not missing, "run `make docs-pages`"


def test_every_setting_of_pretraining_is_on_its_page():
    page = (DOCS / "reference" / "settings.md").read_text(encoding="utf-8")
    parts = {
        "data": settings_file.DataSettings,
        "model": settings_file.ModelSettings,
        "optimizer": settings_file.OptimizerSettings,
        "run": settings_file.RunSettings,
        "stages": settings_file.Stage,
    }
    for table, part in parts.items():
        title = "[[stages]]" if table == "stages" else f"[{table}]"
        section = page.partition(f": `{title}`\n")[2].partition("\n## ")[0]
        rows = re.findall(r"^\| `(\w+)` \|(.*?)\|", section, re.M)
        rows = {name: default.strip() for name, default in rows}
        parameters = inspect.signature(part).parameters
        assert list(rows) == list(parameters), f"the keys of [{table}]"
        for name, parameter in parameters.items():
            default = parameter.default
            if default is inspect.Parameter.empty:
                assert rows[name] == "required"
            elif default is None:
                assert rows[name] == ""
            else:
                shown = tomllib.loads(f"x = {rows[name].strip('`')}")["x"]
                assert shown == default and type(shown) is type(default), name


def test_speed_is_that_of_the_kept_results():
    """The READMEs' tables, and those of the pages for people who move here."""
    text = (ROOT / "benchmarks" / "results" / "everyday_avx512.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \| [^|]+ \| ([\d.]+) ×", text, re.M)
    ratios = {}  # of each call, in the order of the libraries
    for call, library, ratio in rows:
        if library != "roformer_tf":
            ratios.setdefault(call, []).append(ratio)
    for page in (ROOT / "README.md", ROOT / "README.zh.md"):
        table = re.findall(r"^\| [^|]+ \|((?: [\d.]* ?\|){3})$", page.read_text("utf-8"), re.M)
        shown = [re.findall(r"[\d.]+", row) for row in table]
        assert shown == list(ratios.values()), "the table of benchmarks/results/everyday_avx512.md"
    page = (DOCS / "moving_from_hugging_face.md").read_text(encoding="utf-8")
    shown = dict(re.findall(r"^\| ([^|]+) \| ([\d.]+) \|$", page, re.M))
    assert shown == {call: found[0] for call, found in ratios.items()}


def test_scores_are_those_of_the_kept_results():
    kept = (ROOT / "experiments" / "results" / "finetune_tasks.md").read_text(encoding="utf-8")
    rows = [line.strip("|").split("|") for line in kept.splitlines() if line.startswith("| ")]
    names = [name.strip() for name in rows[0]]
    page = (DOCS / "answers.md").read_text(encoding="utf-8")
    page = page.partition("## On real data")[2].partition("\n## ")[0]
    shown = [line.strip("|").split("|") for line in page.splitlines() if line.startswith("| ")]
    columns = [names.index(name.strip()) for name in shown[0]]
    assert len(columns) == 6 and len(shown) > 9
    assert shown[1:] == [[row[i] for i in columns] for row in rows[2:]]


def test_the_messages_of_troubleshooting_are_those_of_the_code():
    """Messages of other libraries are few, and named here."""
    others = {
        "No matching distribution found for tensorflow",
        "No module named 'tensorflow_text'",
        "Could not load library libcudnn",
        "OOM when allocating tensor",
        "Op type not registered 'SentencepieceTokenizeOp'",
    }
    messages = []
    for path in (ROOT / "roformer_tf").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = [x.value if isinstance(x, ast.Constant) else "…" for x in node.values]
                messages.append("".join(parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                messages.append(node.value)
    messages = "\n".join(messages)
    page = (DOCS / "troubleshooting.md").read_text(encoding="utf-8")
    cells = re.findall(r"^\| (.*?) \|", page, re.M)
    quoted = [text for cell in cells for text in re.findall(r"`([^`]+)`", cell) if " " in text]
    assert len(quoted) > 12 and others <= set(quoted)
    for text in set(quoted) - others:
        parts = [part.strip() for part in text.split("…") if part.strip()]
        pattern = "[^\n]*".join(map(re.escape, parts))
        assert re.search(pattern, messages), text


def test_every_public_class_has_a_page():
    made = runpy.run_path(DOCS / "make_reference.py")
    index = (DOCS / "reference" / "README.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| \[`(\w+)`\]\(\.\./\.\./([\w/.]+)\)", index, re.M)
    names = [name for package in made["public_names"]().values() for name in package]
    assert sorted(name for name, _ in listed) == sorted(names) and len(names) > 100
    assert all((ROOT / path).exists() for _, path in listed)
