"""A report as Markdown and as LaTeX: tables, and pictures that lie beside it."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote

from raysim.report.figure import Figure
from raysim.report.report import Report
from raysim.report.tables import latex_table, latex_text, markdown_table, markdown_text

MARKDOWN_MARK = "<!-- made by raysim report -->"
LATEX_MARK = "% made by raysim report"
FLOATS = 6
"""Figures between two page breaks: LaTeX keeps only a few that found no place yet."""


def write_markdown(report: Report, pictures: str) -> str:
    """Return the report as Markdown; ``pictures`` is the folder of the PNG files beside it."""
    lines = [MARKDOWN_MARK, "", f"# {markdown_text(report.title)}", ""]
    lines += [f"Made by {report.made}.", ""]
    for table in report.tables:
        caption = markdown_text(table.caption)
        lines += [f"## {markdown_text(table.title)}", "", markdown_table(table), caption, ""]
    lines += ["## Figures", ""]
    for figure in _drawn(report):
        title = markdown_text(figure.title)
        words = markdown_text(f"{figure.caption} {_notes(figure)}".strip())
        lines += [f"### {title}", ""]
        lines += [f"![{title}]({quote(pictures)}/{figure.name}.png)", "", words, ""]
    if lacking := _lacking(report):
        lines += ["## What is missing", ""]
        lines += [f"- {markdown_text(text)}" for text in lacking]
        lines.append("")
    return "\n".join(lines)


def write_latex(report: Report, pictures: str) -> str:
    """Return the report as a document of its own; ``pictures`` is the folder of the PDF files."""
    lines = [
        LATEX_MARK,
        r"\documentclass[a4paper]{article}",
        r"\usepackage[T1]{fontenc}",
        r"\usepackage{booktabs,graphicx}",
        rf"\title{{{latex_text(report.title)}}}",
        rf"\author{{{latex_text(report.made)}}}",
        r"\date{}",
        r"\begin{document}",
        r"\maketitle",
    ]
    for table in report.tables:
        lines += ["", rf"\section*{{{latex_text(table.title)}}}", latex_table(table).rstrip()]
    for i, figure in enumerate(_drawn(report)):
        lines += ["", r"\clearpage"] if i % FLOATS == 0 else []
        words = f"{figure.title}. {figure.caption} {_notes(figure)}".strip()
        lines += [
            "",
            r"\begin{figure}[htbp]",
            r"\centering",
            rf"\includegraphics[width=\linewidth]{{{pictures}/{figure.name}.pdf}}",
            rf"\caption{{{latex_text(words)}}}",
            rf"\label{{fig:{figure.name}}}",
            r"\end{figure}",
        ]
    if lacking := _lacking(report):
        lines += ["", r"\clearpage", r"\section*{What is missing}", r"\begin{itemize}"]
        lines += [rf"\item {latex_text(text)}" for text in lacking]
        lines.append(r"\end{itemize}")
    return "\n".join([*lines, r"\end{document}", ""])


def _drawn(report: Report) -> Iterator[Figure]:
    return (figure for figure in report.figures if figure.drawing is not None)


def _lacking(report: Report) -> list[str]:
    without = [figure for figure in report.figures if figure.drawing is None]
    return [*report.problems, *(f"{figure.title}: {figure.missing}" for figure in without)]


def _notes(figure: Figure) -> str:
    words = "; ".join(f"{name}: {value}" for name, value in figure.notes.items())
    return f"{words[0].upper()}{words[1:]}." if words else ""
