"""What MkDocs does beside its plugins when `make docs` builds the site (see mkdocs.yml).

The pages are also read as plain Markdown on the repository's host, so they link to files by their
paths in the repository. On the site

* a link to a file outside of `docs/` leads to a copy of it in the site, and a link to the file of a
  public name to its page of the reference;
* each public name that `reference/README.md` lists has a page made from its docstring, and `Name`
  in the text links to it;
* formulas are MathML, which needs no script.
"""

import posixpath
import re
import shutil
from pathlib import Path

import latex2mathml.converter
from mkdocs.structure.files import File, Files
from mkdocs.structure.nav import Section

ROOT = Path(__file__).resolve().parent.parent
COPIES = "repository"  # where files from outside of docs/ are in the site
LINK = re.compile(r"(!?\[(?:[^\]\[]|\[[^\]]*\])*\]\()([^()\s]+)(\))")
FENCE = re.compile(r"^ *(```|~~~).*?^ *\1", re.M | re.S)
INDEX = "reference/README.md"
LANGUAGES = {".py": "python", ".toml": "toml", ".jsonl": "json", ".csv": "text"}


def public_names():
    """Returns {name: (its package, its file in the repository)} from the index of the reference."""
    names, package = {}, None
    for line in (ROOT / "docs" / INDEX).read_text(encoding="utf-8").splitlines():
        if heading := re.match(r"## ([\w.]+)", line):
            package = heading[1]
        elif row := re.match(r"\| \[`(\w+)`\]\(\.\./\.\./([\w/.]+)\)", line):
            names.setdefault(row[1], (package, row[2]))
    return names


NAMES = public_names()
PAGES = {path: name for name, (_, path) in reversed(NAMES.items()) if name[0].isupper()}
PAGES |= {  # where a file has several names, that of the file's own
    path: name
    for name, (_, path) in NAMES.items()
    if Path(path).stem.replace("_", "") == name.lower()
}


def page_of(name):
    """Returns the path in docs/ of a public name's page."""
    return f"reference/{NAMES[name][0].removeprefix('roformer_tf').lstrip('.') or 'roformer_tf'}/{name}.md"


def in_repository(uri):
    """Returns the path in the repository of a page of the site."""
    return uri.removeprefix(f"{COPIES}/") if uri.startswith(f"{COPIES}/") else f"docs/{uri}"


def targets(markdown, uri):
    """Yields (match, path in the repository, anchor) of every relative link outside of code."""
    fences = [match.span() for match in FENCE.finditer(markdown)]
    for match in LINK.finditer(markdown):
        target, _, anchor = match[2].partition("#")
        is_code = any(start <= match.start() < end for start, end in fences)
        if not target or is_code or re.match(r"[a-z]+:", target):
            continue
        yield match, posixpath.normpath(f"{posixpath.dirname(in_repository(uri))}/{target}"), anchor


def on_config(config):
    """Leaves out of the navigation what the repository does not have yet."""

    def existing(entries):
        for entry in entries:
            for title, value in entry.items() if isinstance(entry, dict) else [(None, entry)]:
                if isinstance(value, list):
                    yield {title: list(existing(value))}
                elif (ROOT / "docs" / value).exists():
                    yield entry

    config.nav = list(existing(config.nav))
    return config


def on_files(files: Files, config):
    """Adds the reference, and copies of the files that pages link to, and those of these copies."""
    for name, (_, path) in NAMES.items():
        module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        text = f"---\ntitle: {name}\nsearch:\n  boost: 0.5\n---\n\n::: {module}.{name}\n"
        files.append(File.generated(config, page_of(name), content=text))
    waiting = [(file.src_uri, file.content_string) for file in files.documentation_pages()]
    while waiting:
        uri, text = waiting.pop()
        for _, path, _ in targets(text, uri):
            copy = f"{COPIES}/{path}"
            if path.startswith(("docs/", "..")) or path in PAGES or files.get_file_from_path(copy):
                continue
            source = ROOT / path
            if not source.is_file() or files.get_file_from_path(f"{copy}.md"):
                continue  # MkDocs names a link to nothing
            if source.suffix in LANGUAGES:
                code = source.read_text(encoding="utf-8").rstrip("\n")
                page = f"# {path}\n\n~~~~~~{LANGUAGES[source.suffix]}\n{code}\n~~~~~~\n"
                page = "---\nsearch:\n  exclude: true\n---\n\n" + page
                files.append(File.generated(config, f"{copy}.md", content=page))
            else:
                files.append(File.generated(config, copy, abs_src_path=str(source)))
                if source.suffix == ".md":
                    waiting.append((copy, source.read_text(encoding="utf-8")))
    return files


def on_nav(nav, config, files):
    """Lists the pages of the public names in the section "Reference", by package."""
    (section,) = (item for item in nav.items if item.title == "Reference")
    packages = {}
    for name, (package, _) in NAMES.items():
        packages.setdefault(package, []).append(files.get_file_from_path(page_of(name)).page)
    for package, pages in packages.items():
        pages.sort(key=lambda page: page.file.src_uri.lower())
        part = Section(package, pages)
        part.parent = section
        for page in pages:
            page.parent = part
        section.children.append(part)
    return nav


def on_page_markdown(markdown, page, config, files):
    """Turns links to files of the repository into links of the site."""
    uri = page.file.src_uri
    here = posixpath.dirname(uri) or "."

    def place(path):
        if path in PAGES:
            return page_of(PAGES[path])
        if path.startswith("docs/"):
            return path.removeprefix("docs/")
        copy = f"{COPIES}/{path}"
        return f"{copy}.md" if files.get_file_from_path(f"{copy}.md") else copy

    parts, end = [], 0
    for match, path, anchor in targets(markdown, uri):
        if (ROOT / path).is_dir():
            label = match[1][match[1].index("[") + 1 : -2]
            parts += [markdown[end : match.start()], label]
            end = match.end()
            continue
        target = place(path)
        if uri == INDEX and match[1].startswith("[`"):  # the file may have several public names
            target = page_of(match[1][2:-3])
        link = posixpath.relpath(target, here) + (f"#{anchor}" if anchor else "")
        parts += [markdown[end : match.start(2)], link]
        end = match.end(2)
    return "".join(parts) + markdown[end:]


WRAPPED = re.compile("(?<=[\u3000-\u9fff\uff00-\uffef])\n(?=[\u3000-\u9fff\uff00-\uffef])")


def on_page_content(html, page, config, files):
    """Links `Name` to the reference, and turns formulas into MathML."""
    html = WRAPPED.sub("", html)  # a line break between Chinese characters is no space
    html = re.sub(r'<(span|div) class="arithmatex">(.*?)</\1>', _mathml, html, flags=re.S)
    own = page.file.src_uri

    def link(match):
        name = match[1]
        is_word = name.islower() and "_" not in name  # `convert` may be the command, or a verb
        if name not in NAMES or is_word or page_of(name) == own:
            return match[0]
        file = files.get_file_from_path(page_of(name))
        return f'<a class="name" href="{file.url_relative_to(page.file)}">{match[0]}</a>'

    parts = re.split(r"(<(a|pre|h1|h2|h3)\b.*?</\2>)", html, flags=re.S)
    # each separator gives two parts: itself and the name of its tag
    text, kept = parts[0::3], parts[1::3]
    text = [re.sub(r"<code>(?:roformer_tf\.)?(?:\w+\.)?(\w+)</code>", link, part) for part in text]
    return "".join(a + b for a, b in zip(text, [*kept, ""]))


def _mathml(match):
    formula = match[2].strip()
    for a, b in (("&amp;", "&"), ("&lt;", "<"), ("&gt;", ">")):
        formula = formula.replace(a, b)
    display = "inline" if match[1] == "span" else "block"
    return latex2mathml.converter.convert(formula[2:-2].strip(), display=display)


def on_post_build(config):
    """Gives the Chinese pages the list of pages that the switch of languages looks for."""
    site = Path(config.site_dir)
    shutil.copy(site / "sitemap.xml", site / "zh" / "sitemap.xml")
