"""Writes a report: one document per format, pictures in a folder beside them.

Every file is complete or absent. An earlier report is replaced, any other file is not.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from raysim.errors import ConfigError, EnvironmentNotFit, OutputError
from raysim.report.build import make_report
from raysim.report.documents import (
    LATEX_MARK,
    MARKDOWN_MARK,
    write_latex,
    write_markdown,
    write_page,
)
from raysim.report.report import Report
from raysim.storage.files import reason, save_output

DOCUMENTS = ("html", "md", "tex")
PICTURES = ("png", "pdf")
MARKS = {"html": '<meta name="generator" content="raysim', "md": MARKDOWN_MARK, "tex": LATEX_MARK}
"""Text by which the beginning of a document shows that it is ours."""
NEEDS = {
    **{"html": ("jinja2", "plotly"), "md": ("jinja2",), "tex": ("jinja2",)},
    **dict.fromkeys(PICTURES, ("matplotlib",)),
}
OWN = "figures.json"
"""Lists the pictures of the folder that are ours."""


@dataclass(frozen=True)
class Plan:
    folder: Path
    stem: str
    formats: Sequence[str]

    @property
    def pictures(self) -> Path:
        return self.folder / f"{self.stem}_figures"

    @property
    def forms(self) -> list[str]:
        """The picture formats asked for and those that the documents show."""
        shown = {"md": "png", "tex": "pdf"}
        wanted = {shown.get(form, form) for form in self.formats}
        return [form for form in PICTURES if form in wanted]

    def document(self, form: str) -> Path:
        return self.folder / f"{self.stem}.{form}"


@dataclass(frozen=True)
class Written:
    report: Report
    files: Sequence[Path]
    """The documents, then the folder of the pictures where there are any."""


def write_report(
    places: Sequence[str],
    out: str | Path | None = None,
    *,
    formats: Sequence[str] | None = None,
    title: str = "",
    swept: Sequence[str] = (),
) -> Written:
    """Write a report on run directories; what cannot be written is refused before any work.

    The first figure shows accuracy, noise left, ARI and bytes against the first setting that was
    ``swept`` (such as "data.noise.rate"), with a figure for each value of the others.
    """
    plan = checked_output(out, formats)
    report = make_report(places, title, swept)
    return Written(report, _write(report, plan))


def checked_output(out: str | Path | None, formats: Sequence[str] | None = None) -> Plan:
    """Return the plan for ``--out`` and ``--format``, if it can be written."""
    plan = plan_output(out, formats)
    for form in (*plan.formats, *plan.forms):
        for package in ("pandas", *NEEDS[form]):
            if importlib.util.find_spec(package) is None:
                raise EnvironmentNotFit(
                    f"a report as {form} needs {package}, which is not installed; "
                    "pip install 'raysim[report]'"
                )
    for form in plan.formats:
        if form in DOCUMENTS:
            _check_replaceable(plan.document(form), MARKS[form])
    return plan


def plan_output(out: str | Path | None, formats: Sequence[str] | None = None) -> Plan:
    """Return the plan for ``--out`` (a file or a folder) and ``--format``."""
    wanted = tuple(dict.fromkeys(formats)) if formats is not None else None
    for form in wanted or ():
        if form not in (*DOCUMENTS, *PICTURES):
            known = ", ".join((*DOCUMENTS, *PICTURES))
            raise ConfigError(f"--format must be some of {known}, got {form!r}; correct it")
    if wanted == ():
        raise ConfigError("--format names no format; leave it out for html")
    if out is None:
        return Plan(Path(), "report", wanted or ("html",))
    if "://" in str(out):
        raise ConfigError(f"--out must be a path of this machine, got {out}; write it here first")
    path = Path(out).expanduser()
    if str(out).endswith(("/", os.sep)) or path.is_dir() or not path.suffix:
        return Plan(path, "report", wanted or ("html",))
    suffix = path.suffix[1:].lower()
    if suffix not in DOCUMENTS:
        raise ConfigError(
            f"--out must end in .html, .md or .tex, or name a folder, got {out}; pictures go to a "
            "folder"
        )
    if wanted is not None and suffix not in wanted:
        raise ConfigError(
            f"--out {out} ends in .{suffix}, but --format is {','.join(wanted)}; make them agree"
        )
    return Plan(path.parent, path.stem, wanted or (suffix,))


def _check_replaceable(path: Path, mark: str) -> None:
    """Refuse to overwrite what is not an earlier report."""
    if not path.exists():
        return
    try:
        is_ours = path.is_file() and mark in path.read_bytes()[:4096].decode(errors="replace")
    except OSError as wrong:
        raise OutputError(f"{path} cannot be read ({reason(wrong)}); choose another") from wrong
    if not is_ours:
        raise OutputError(f"{path} is not a report of raysim and stays; choose another --out")


# ---- writing -------------------------------------------------------------------------------


def _write(report: Report, plan: Plan) -> list[Path]:
    """Write the pictures first, so that no document shows one that is not there."""
    from raysim.report.plots import draw

    before = _known_pictures(plan.pictures)
    wanted = {
        f"{figure.name}.{form}": (figure, form)
        for figure in report.figures
        if figure.drawing is not None
        for form in plan.forms
    }
    for name in wanted:
        if name not in before and (plan.pictures / name).exists():
            raise OutputError(
                f"{plan.pictures / name} is not a picture of raysim and stays; choose another --out"
            )
    pictures = {n: draw(figure, report.methods, form) for n, (figure, form) in wanted.items()}
    write = {
        "html": lambda: write_page(report),
        "md": lambda: write_markdown(report, plan.pictures.name),
        "tex": lambda: write_latex(report, plan.pictures.name),
    }
    files = []
    if plan.forms:
        own = json.dumps(sorted({*pictures, *before}), indent=0).encode()
        save_output(plan.pictures / OWN, own)  # first: after a crash they are known to be ours
        for name, content in pictures.items():
            save_output(plan.pictures / name, content)
        for name in before - pictures.keys():
            with contextlib.suppress(OSError):
                (plan.pictures / name).unlink(missing_ok=True)
        save_output(plan.pictures / OWN, json.dumps(sorted(pictures), indent=0).encode())
    for form in plan.formats:
        if form in DOCUMENTS:
            save_output(plan.document(form), write[form]().encode())
            files.append(plan.document(form))
    return files + ([plan.pictures] if plan.forms else [])


def _known_pictures(folder: Path) -> set[str]:
    """Return the names of our pictures in a folder; names that leave it are not ours."""
    try:
        found = json.loads((folder / OWN).read_bytes())
    except (OSError, ValueError):
        return set()
    names = found if isinstance(found, list) else []
    return {n for n in names if isinstance(n, str) and Path(n).name == n and n.endswith(PICTURES)}
