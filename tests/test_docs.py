"""The documents: links lead somewhere, code runs as written, tables are what the code says."""

from __future__ import annotations

import importlib.util
import re
import shlex
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from raysim.cli.main import VERBS, main
from raysim.studies.reproduce.papers import TABLES

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "raysim").rglob("*.md")),
    *sorted((ROOT / "configs").rglob("*.md")),
    *sorted((ROOT / "deploy").rglob("*.md")),
]
DOCS = ROOT / "raysim" / "docs"
EXAMPLE = ROOT / "configs" / "examples" / "my_methods.py"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def tool(name: str):
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def blocks(page: Path, kind: str) -> list[str]:
    return [code for found, code in BLOCK.findall(page.read_text("utf-8")) if found == kind]


def anchors(page: Path) -> set[str]:
    """Anchors of a page's headings, as GitHub makes them."""
    heads = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.MULTILINE)
    plain = [re.sub(r"[^\w\- ]", "", head.replace("`", "").lower()) for head in heads]
    return {head.strip().replace(" ", "-") for head in plain}


@pytest.fixture
def raysim(tmp_path, monkeypatch, capsys):
    """Return a function that runs a command line as it is written; code, stdout and stderr."""
    before, path = set(sys.modules), list(sys.path)
    monkeypatch.chdir(tmp_path)

    def run(line: str) -> tuple[int, str, str]:
        words = shlex.split(line, comments=True)
        assert words[0] == "raysim"
        with pytest.raises(SystemExit) as left:
            main(words[1:])
        return left.value.code, *capsys.readouterr()

    yield run
    sys.path[:] = path
    for name in sys.modules.keys() - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


# ---- all pages ---------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_to_files_and_headings_that_exist(page):
    text = BLOCK.sub("", page.read_text("utf-8"))
    wrong = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        other = (page.parent / name).resolve() if name else page
        if not other.exists() or (anchor and anchor not in anchors(other)):
            wrong.append(target)

    assert wrong == []


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_verbs_that_pages_name_exist(page):
    text = page.read_text("utf-8")
    named = re.findall(r"`raysim ([a-z]+)", BLOCK.sub("", text))
    for code in blocks(page, "sh"):
        named += re.findall(r"^raysim ([a-z]+)", code, re.MULTILINE)

    assert set(named) - set(VERBS) == set()


def test_the_python_on_the_package_index_is_that_of_the_readme():
    readme = (ROOT / "README.md").read_text("utf-8")

    (code,) = blocks(DOCS / "about.md", "python")

    assert code in readme


# ---- settings ----------------------------------------------------------------------------------


def test_the_page_of_settings_is_what_the_settings_are():
    made = tool("settings_doc").page()

    assert (DOCS / "settings.md").read_text("utf-8") == made, "run python tools/settings_doc.py"


def test_the_page_of_settings_has_names_defaults_and_choices_that_a_person_wrote_down():
    text = (DOCS / "settings.md").read_text("utf-8")

    assert "| `train.lr` | `0.05` | Learning rate. |" in text
    assert "| `data.partition` | `tasks` | A choice of [partition](#partition), by `kind:`." in text
    assert "### name: fb_nll\n" in text
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    assert all(len(re.findall(r"(?<!\\)\|", row)) == 4 for row in rows)  # one line, three cells
    assert re.search(r"### kind: uniform\n.*?\| `rho` \| `0.4` \|", text, re.DOTALL)
    assert re.search(r"### GroupingSettings\n.*?\| `threshold` \| `0.005` \|", text, re.DOTALL)


def test_configs_readme_names_every_section():
    from dataclasses import fields

    from raysim.config import RunConfig

    text = (ROOT / "configs" / "README.md").read_text("utf-8")

    assert [f.name for f in fields(RunConfig) if f"`{f.name}`" not in text] == []


def test_the_yaml_of_configs_readme_is_a_config(tmp_path):
    from raysim.config import load_config

    (tmp_path / "mine.yaml").write_text(blocks(ROOT / "configs" / "README.md", "yaml")[0])
    config = load_config(tmp_path / "mine.yaml")

    assert (config.name, config.data.noise.rate, config.method.grouping.rank) == (
        "stronger",
        0.4,
        5,
    )


def test_the_python_of_configs_readme_prints_what_it_says(tmp_path, monkeypatch, capsys):
    code = blocks(ROOT / "configs" / "README.md", "python")[0]
    expected = re.findall(r"print\(.*\)  # (.+)$", code, re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    exec(code, {})

    assert capsys.readouterr().out.splitlines() == expected
    assert len(expected) == 3


# ---- adding a method ---------------------------------------------------------------------------


def test_the_method_in_the_docs_is_the_example_word_for_word():
    assert blocks(DOCS / "methods.md", "python")[0] == EXAMPLE.read_text("utf-8")


def test_the_commands_for_an_own_method_work_as_written(tmp_path, raysim):
    page = DOCS / "methods.md"
    (tmp_path / "my_methods.py").write_text(blocks(page, "python")[0], encoding="utf-8")

    for line in blocks(page, "sh")[0].splitlines():
        code, out, err = raysim(line)
        assert code == 0, out + err
        assert "label_groups" in out


def test_the_calls_that_a_step_may_make_exist():
    from raysim.protocols import Context, Federation

    text = (DOCS / "methods.md").read_text("utf-8")
    named = set(re.findall(r"`context\.(?:federation\.)?(\w+)", text)) - {"federation"}

    assert named >= {"map", "reduce", "record", "sent", "clean"}
    known = {*vars(Context), *vars(Federation), *Context.__annotations__}
    assert named - known == set()


# ---- privacy -----------------------------------------------------------------------------------


def messages():
    return tool("measured_messages")


def test_the_table_of_messages_has_every_method():
    assert list(messages().written()) == messages().own_methods()


@pytest.mark.parametrize("method", messages().own_methods())
def test_a_method_sends_what_the_table_says(method, tmp_path):
    assert messages().measured(method, tmp_path) == messages().written()[method]


def test_every_message_is_explained():
    text = (DOCS / "privacy.md").read_text("utf-8")
    sent = {m for row in messages().written().values() for both in row.values() for m in both}

    assert {m for m in sent if f"**{m}**" not in text} == set()


def test_the_leak_is_as_large_as_the_page_says(capsys):
    page = DOCS / "privacy.md"
    exec(blocks(page, "python")[0], {})

    assert capsys.readouterr().out == blocks(page, "")[0]


# ---- troubleshooting ---------------------------------------------------------------------------


def test_every_line_of_doctor_is_explained():
    text = (DOCS / "troubleshooting.md").read_text("utf-8")
    code = "".join(
        (ROOT / "raysim/cli" / f"{n}.py").read_text() for n in ("doctor", "doctor_cluster")
    )
    lines = set(re.findall(r'(?:Finding|_verdict)\(\s*"(\w+)"', code))

    assert lines >= {"packages", "ray", "clock", "storage"}
    assert {line for line in lines if f"`{line}`" not in text} == set()


@pytest.mark.ray
def test_troubles_look_as_the_page_shows_them(raysim, ray_session):
    found = BLOCK.findall((DOCS / "troubleshooting.md").read_text("utf-8"))
    pairs = list(pairwise(found))
    cases = [(a[1], b[1].rstrip()) for a, b in pairs if (a[0], b[0]) == ("sh", "")]

    for commands, shown in cases:
        *before, line = commands.splitlines()
        for first in before:
            assert raysim(first)[0] == 0
        code, _, err = raysim(line)
        assert code in (2, 3), line
        assert err.startswith(shown), line
    assert len(cases) == 7


# ---- sheets ------------------------------------------------------------------------------------

NAMES = {"CIFAR-10": "cifar10", "Fashion-MNIST": "fashion_mnist"}
ROWS = {"FB-NLL(-)": "fb_nll_minus", "IFCA-PFL": "ifca_pfl", "RCC-PFL": "rcc_pfl"}


def printed(table: str, data: str, method: str) -> str:
    cells = TABLES[table].printed
    dataset, row = NAMES.get(data, data.lower()), ROWS.get(method, method.lower().replace("-", "_"))
    return " ".join(str(cells[f"{dataset}/m{m}/{row}"].mean) for m in (2, 3, 5))


def table(page: str) -> list[list[str]]:
    """The table of published numbers, header first; an empty first cell repeats the one above."""
    part = (DOCS / "sheets" / page).read_text("utf-8").split("## Published numbers", 1)[1]
    lines = part.split("\n\n")[1].splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    for above, row in pairwise(rows):
        row[0] = row[0] or above[0]
    return [rows[0], *rows[2:]]


def test_the_sheet_of_fb_nll_prints_what_reproduce_compares_with():
    (_, _, *methods), *rows = table("fb_nll.md")
    first = {"class-independent": 9, "class-dependent": 10, "uniform": 11}

    assert len(rows) == 6
    for noise, data, *cells in rows:
        for method, shown in zip(methods, cells, strict=True):
            number = first[noise] - (0 if method == "FB-NLL" else 5)
            assert floats(shown) == floats(printed(f"fb-nll/table{number}", data, method))


def test_the_sheet_of_rcc_pfl_prints_what_reproduce_compares_with():
    _, *rows = table("rcc_pfl.md")

    assert len(rows) == 12
    for data, method, *cells in rows:
        for number, shown in zip((2, 3), cells, strict=True):
            assert floats(shown) == floats(printed(f"rcc-pfl/table{number}", data, method))


def floats(text: str) -> list[float]:
    return [float(word) for word in text.split()]
