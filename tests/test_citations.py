"""Every citation opens: a page of this repository, or an equation of a paper that the file names.

Code, configs and pages may cite ``path/of/page.md``, with headings in quotes behind it; code may
cite equations, algorithms, procedures, lines and sections of papers.
"""

from __future__ import annotations

import ast
import io
import itertools
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MODULES = sorted((ROOT / "raysim").rglob("*.py"))
OTHERS = [
    *sorted((ROOT / "raysim").rglob("*.md")),
    *sorted((ROOT / "configs").glob("*.md")),
    *sorted((ROOT / "configs").rglob("*.yaml")),
    *sorted((ROOT / "configs" / "examples").glob("*.py")),
]
PAPERS = (
    *("FB-NLL", "RCC-PFL", "IFCA", "FedCorr", "ClipFL", "RHFL", "FedFixer", "FedRN", "FedLSR"),
    *("CORES2", "Co-teaching", "Joint Optimi[sz]ation", "SELFIE", "DivideMix", "Robust FL", "MR"),
    *(
        "FedAvg",
        "FedProx",
        "FedNova",
        "FedAdam",
        r"[A-Z]\w+ et al\.",
        r"[A-Z]\w+ and [A-Z]\w+[^.]* (?:19|20)\d\d",
    ),
)
NAMES_A_PAPER = re.compile(rf"\b(?:{'|'.join(PAPERS)})(?!\w)")
NUMBERED = re.compile(
    r"\b(?:Eqs?\.\s*\(?|Algorithms?\s|Alg\.\s|Procedures?\s|[Ll]ines?\s|[Ss]ections?\s)"
    r"(?:\d+|[IVX]+\b)"
)
PAGE = re.compile(r"[\w./-]*\w\.md\b(#[\w-]+)?")
HEADING = re.compile(r'(?:,|,? and| \()? ?"([^"]+)"')
NUMBER_OF_A_PAGE = re.compile(r",? \(?(?:sections?|entry|entries|steps?) ")
NOWHERE = re.compile(
    r"\berrata\b|\bspecification sheets?\b|\bsheets?,? sections?\b|\bthe sheets?\b"
)
WRITTEN = {"RESULTS.md", "NOTES.md", "report.md"}
"""Pages that runs write, named without a folder."""


def headings(page: Path) -> list[str]:
    found = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.MULTILINE)
    return [head.replace("`", "").strip() for head in found]


def anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


def texts(path: Path, source: str) -> list[str]:
    """Strings and comments of a module, blocks of comments as one; the whole of another file."""
    if path.suffix != ".py":
        shown = re.sub(r"\[[^\]]*\]\(", "(", source)  # links: test_docs opens them
        return [" ".join(shown.replace("\n# ", " ").split())]
    strings = [
        node.value
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = [(t.start[0], t.string.lstrip("# ")) for t in tokens if t.type == tokenize.COMMENT]
    blocks = itertools.groupby(enumerate(comments), lambda pair: pair[1][0] - pair[0])
    together = [" ".join(text for _, (_, text) in block) for _, block in blocks]
    return [" ".join(text.split()) for text in (*strings, *together)]


def opened(name: str, beside: Path) -> Path | None:
    """The page called ``name``, from the root or, between pages, from where it is named."""
    places = [ROOT / name] + ([beside.parent / name] if beside.suffix == ".md" else [])
    return next((place for place in places if place.is_file()), None)


def wrong_pages(path: Path, text: str) -> list[str]:
    wrong = []
    for match in PAGE.finditer(text):
        name, _, place = match[0].partition("#")
        if name in WRITTEN or "://" in text[max(0, match.start() - 8) : match.start()]:
            continue
        page = opened(name, path)
        if page is None:
            wrong.append(f"no page {name}")
            continue
        known, rest = headings(page), text[match.end() :].lstrip("`)")
        if place and place not in map(anchor, known):
            wrong.append(f"no heading {place} in {name}")
        if NUMBER_OF_A_PAGE.match(rest):
            wrong.append(f"{name}{rest[:20]}: name its heading in quotes")
        while heading := HEADING.match(rest):
            if heading[1] not in known:
                wrong.append(f"no heading {heading[1]!r} in {name}")
            rest = rest[heading.end() :]
    return wrong


def wrong_citations(path: Path, source: str) -> list[str]:
    found = [(text, wrong_pages(path, text)) for text in texts(path, source)]
    wrong = [entry for _, entries in found for entry in entries]
    wrong += [f"leads nowhere: {m[0]}" for text, _ in found for m in NOWHERE.finditer(text)]
    if path.suffix == ".py":
        head = ast.get_docstring(ast.parse(source)) or ""
        if not NAMES_A_PAPER.search(head):
            cited = [text for text, _ in found if NUMBERED.search(text)]
            wrong += [
                f"{m[0]} of which paper? name it in the file's docstring"
                for text in cited
                if not NAMES_A_PAPER.search(text)
                for m in NUMBERED.finditer(text)
            ]
    return wrong


@pytest.mark.parametrize("paths", [MODULES, OTHERS], ids=["modules", "others"])
def test_every_citation_opens(paths):
    wrong = {
        path.relative_to(ROOT).as_posix(): found
        for path in paths
        if (found := wrong_citations(path, path.read_text("utf-8")))
    }
    assert wrong == {}


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ('"""Scores (metrics.md section 3)."""', "no page metrics.md"),
        ('"""Scores (raysim/docs/sheets/metrics.md section 3)."""', "name its heading"),
        ('"""raysim/docs/sheets/metrics.md, "Bytes" and "Bits"."""', "no heading 'Bits'"),
        ('# see raysim/docs/sheets/noise.md,\n# "Human\n# labels of dogs"', "no heading 'Human"),
        ('"""raysim/docs/sheets/metrics.md#bits."""', "no heading bits"),
        ("x = 0.5  # errata entry 7", "leads nowhere: errata"),
        ('"""Means (sheet section 4)."""', "leads nowhere: sheet section"),
        ('"""Means."""\n\n\ndef f():\n    """Return s_i (Eq. 4)."""', "Eq. 4 of which paper?"),
        ('"""Means."""\n\nx = 1  # line 12', "line 12 of which paper?"),
    ],
)
def test_a_citation_that_does_not_open_is_found(source, says):
    found = wrong_citations(ROOT / "raysim" / "one.py", source)

    assert any(says in wrong for wrong in found), found


def test_citations_that_open_pass():
    source = '''"""Spectra (FB-NLL Eq. 2); raysim/docs/sheets/metrics.md, "Bytes" and "Groups"."""

x = 1  # Eq. 3, line 12; RESULTS.md is written by a run
'''

    assert wrong_citations(ROOT / "raysim" / "one.py", source) == []
