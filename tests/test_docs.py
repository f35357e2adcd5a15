"""What the documents show is run: Python blocks, commands of `tinsmith`, links, and the tour."""

from __future__ import annotations

import ast
import doctest
import importlib.util
import inspect
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tinsmith as ts

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
BLOCK = re.compile(r"^```(\w+)( [\w ]+)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path, language: str, needs: str = "") -> list[tuple[int, str]]:
    """(line, text) of the fenced blocks of a language that name these packages after it: blocks
    that name some need them, and are scripts of their own."""
    text = page.read_text(encoding="utf-8")
    return [
        (text.count("\n", 0, m.start(3)) + 1, m[3])
        for m in BLOCK.finditer(text)
        if m[1] == language and (m[2] or "").strip() == needs
    ]


def needed(page: Path) -> list[str]:
    """The packages that Python blocks of a page name, block by block."""
    text = page.read_text(encoding="utf-8")
    return [m[2].strip() for m in BLOCK.finditer(text) if m[1] == "python" and m[2]]


def commands(page: Path) -> list[str]:
    """The lines `$ tinsmith ...` of its console blocks, continued ones joined."""
    lines = [t.replace("\\\n", " ") for _, t in blocks(page, "console")]
    return [line[2:] for t in lines for line in t.splitlines() if line.startswith("$ tinsmith ")]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that holds the examples, as the documents assume."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    return tmp_path


def run(arguments: list[str], folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def names(pages: list[Path]) -> list[str]:
    return [str(p.relative_to(ROOT)) for p in pages]


@pytest.mark.parametrize("name", names([p for p in PAGES if blocks(p, "python")]))
def test_the_python_blocks_run_in_order(name: str, folder: Path) -> None:
    source, at = [], 1
    for line, text in blocks(ROOT / name, "python"):
        source.append("\n" * (line - at) + text)  # so that tracebacks show the page's lines
        at = line + text.count("\n")
    script = folder / f"{Path(name).stem}_blocks.py"
    script.write_text("".join(source), encoding="utf-8")
    run([script.name], folder)


@pytest.mark.parametrize(
    ("name", "needs"), [(str(p.relative_to(ROOT)), needs) for p in PAGES for needs in needed(p)]
)
def test_the_python_blocks_that_need_other_packages_run(
    name: str, needs: str, folder: Path
) -> None:
    missing = [p for p in needs.split() if importlib.util.find_spec(p) is None]
    if missing:
        pytest.skip(f"{name} shows a script that needs {' and '.join(missing)}")
    for line, text in blocks(ROOT / name, "python", needs):
        script = folder / f"block_{line}.py"
        script.write_text(text, encoding="utf-8")
        run([script.name], folder)


def test_the_readme_is_short() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 200
    assert len(text.split()) <= 1500


def test_the_index_names_every_page() -> None:
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    pages = {p.name for p in ROOT.glob("docs/*.*") if p.suffix in (".md", ".py")} - {"README.md"}
    assert not [p for p in pages if f"]({p})" not in index]


@pytest.mark.parametrize("name", ts.__all__)
def test_what_is_public_is_documented_with_its_options(name: str) -> None:
    pages = ("python.md", "quantize.md") if name == "quantize" else ("python.md",)
    text = "".join((ROOT / "docs" / page).read_text(encoding="utf-8") for page in pages)
    assert re.search(rf"\bts\.{name}\(|\b{name}\(|`{name}`", text)
    what = getattr(ts, name)
    options = [] if isinstance(what, type) else inspect.signature(what).parameters.values()
    keywords = [o.name for o in options if o.kind is o.KEYWORD_ONLY]
    assert not [k for k in keywords if not re.search(rf"\b{k}(=|`)", text)]


@pytest.mark.parametrize("name", names([p for p in PAGES if commands(p)]))
def test_the_commands_run(name: str, folder: Path) -> None:
    lines = [shlex.split(c)[1:] for c in commands(ROOT / name)]
    program = (
        "import sys\nfrom tinsmith.cli import main\n"
        f"for line in {lines!r}:\n"
        "    try:\n        main(line)\n"
        "    except SystemExit as done:\n"
        "        assert not done.code, f'{line} ended with {done.code}'\n"
    )
    run(["-c", program], folder)


def sessions(page: Path) -> list[tuple[str, str]]:
    """(command, what is shown of its output) of the console blocks."""
    found: list[tuple[str, str]] = []
    for _, text in blocks(page, "console"):
        for part in re.split(r"^\$ ", text.replace("\\\n", " "), flags=re.MULTILINE)[1:]:
            line, _, shown = part.partition("\n")
            found.append((line, shown))
    return found


TABLES = ("tinsmith kernels ", "tinsmith passes", "tinsmith ops ")
"""Commands that print the same on every machine."""


@pytest.mark.parametrize(
    ("name", "command", "shown"),
    [
        (str(p.relative_to(ROOT)), command, shown)
        for p in PAGES
        for command, shown in sessions(p)
        if command.startswith(TABLES) and shown
    ],
)
def test_the_tables_are_as_they_are_shown(name: str, command: str, shown: str) -> None:
    """`...` stands for anything, and any white space for any other."""
    from tests.cli.harness import tinsmith

    got = tinsmith(*shlex.split(command)[1:]).stdout
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    assert doctest.OutputChecker().check_output(shown, got, flags), f"{name} shows another\n{got}"


def test_the_tour_runs(folder: Path) -> None:
    assert "The end" in run([str(ROOT / "docs" / "tour.py")], folder)


def test_the_readme_shows_the_test_command() -> None:
    """`.ci/run` runs the first such line."""
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert any(line.strip().startswith("python -m pytest") for line in lines)


@pytest.mark.parametrize("name", names(PAGES))
def test_links_lead_somewhere(name: str) -> None:
    page = ROOT / name
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        file, _, anchor = target.partition("#")
        if file.startswith(("http:", "https:")):
            continue
        where = page.parent / file if file else page
        assert where.exists(), f"{name} links to {target}"
        if anchor and where.suffix == ".md":
            heads = re.findall(r"^#+ (.*)$", where.read_text(encoding="utf-8"), re.MULTILINE)
            slugs = [re.sub(r"[^\w\- ]", "", h).strip().lower().replace(" ", "-") for h in heads]
            assert anchor in slugs, f"{name} links to {target}; its headings are {slugs}"


def paragraph(path: Path) -> str:
    """The first paragraph of a module's docstring, as one line."""
    doc = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return " ".join(doc.split("\n\n")[0].split())


def test_the_layout_says_of_every_module_what_its_docstring_begins_with() -> None:
    """A line that starts with - and the file name in backticks, under the heading of its folder,
    followed by the docstring's first sentence."""
    named, folder = set(), ""
    for line in (ROOT / "docs" / "layout.md").read_text(encoding="utf-8").splitlines():
        if head := re.match(r"#+ (?:`(?:tinsmith/)?([\w/]*)`)?", line):
            folder = head[1] or ""
        if item := re.match(r"- `(\w+\.py)`: ", line):
            named.add((folder + item[1], line[item.end() :]))
    package, there = ROOT / "tinsmith", set()
    for path in package.rglob("*.py"):
        if path.name != "__init__.py":
            sentence = re.match(r".+?[.?](?= [A-Z`]|$)", paragraph(path))
            assert sentence, f"the docstring of {path} does not begin with a sentence"
            there.add((path.relative_to(package).as_posix(), sentence[0]))
    lacks, gone = sorted(there - named), sorted(named - there)
    assert not lacks, "docs/layout.md lacks\n" + "\n".join(f"- `{n}`: {s}" for n, s in lacks)
    assert not gone, "docs/layout.md says\n" + "\n".join(f"- `{n}`: {s}" for n, s in gone)


def test_the_layout_says_of_a_room_what_its_package_says() -> None:
    text = (ROOT / "docs" / "layout.md").read_text(encoding="utf-8")
    told = re.findall(r"^##+ `(?:tinsmith/)?([\w/]+)/`\n\n(.+?)\n\n", text, re.M | re.S)
    rooms = [(ROOT / "tinsmith" / name / "__init__.py", sentence) for name, sentence in told]
    said = [(room, sentence) for room, sentence in rooms if room.exists()]
    assert len(said) > 8
    for room, sentence in said:
        assert paragraph(room) == " ".join(sentence.split()), room
