"""RESULTS.md: everything that a directory of results says, and what it does not hold."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from raysim.errors import OutputError
from raysim.studies.reproduce.papers import PAPERS, SCALES, TABLES, VALUES, Paper, Scale, Table
from raysim.studies.reproduce.results import Result, Row, read_results, rows_of

NOTES = "NOTES.md"
"""A file beside the results that is put into the summary as it is: explanations by hand."""


def write_summary(out: Path) -> str:
    """Return the Markdown text for a directory of results."""
    found = {
        (name, scale): results
        for name, table in TABLES.items()
        for scale in SCALES
        if (results := read_results(out, table, scale)) and results[0]["scale"] == scale
    }
    if not found:
        raise OutputError(
            f"{out} holds no results of raysim reproduce; give the folder that was its --out"
        )
    parts = [_head(found)]
    if (out / NOTES).is_file():
        parts.append((out / NOTES).read_text(encoding="utf-8").strip())
    parts += [_table(TABLES[name], scale, rs, out) for (name, scale), rs in found.items()]
    parts += [_paired(paper, out, scale) for paper in PAPERS.values() for scale in SCALES]
    parts.append(_not_run(found))
    return "\n\n".join(part for part in parts if part) + "\n"


def _head(found: dict[tuple[str, Scale], list[Result]]) -> str:
    every = [result for results in found.values() for result in results]
    hours = sum(result["seconds"]["total"] for result in every) / 3600
    machines = sorted(
        {"{processor}, {cpus} CPUs, {system}".format_map(result["machine"]) for result in every}
    )
    versions = sorted({result["raysim"] for result in every})
    return "\n".join(
        [
            "# Measured results",
            "",
            "Made by `raysim reproduce --summary DIR --write FILE` from one JSON file per run;",
            "not edited by hand. Accuracies in per cent: mean over clients of the accuracy on",
            "their own task after the last round, then mean ± sample sd over seeds.",
            "",
            f"- runs: {len(every)}, {hours:.1f} hours of wall time in processes with one thread;",
            "  minutes a run: without setup, in which features are computed once per machine",
            f"- machine: {'; '.join(machines)}",
            f"- raysim {', '.join(versions)}",
        ]
    )


def _table(table: Table, scale: Scale, results: Sequence[Result], out: Path) -> str:
    lines = [
        f"## {table.name}, scale {scale}: {table.title}",
        "",
        *_statements(table, scale, results),
    ]
    rows = [row for row in rows_of(table, results) if row.values]
    return "\n".join(lines + _markdown(*grid(table, scale, out, results, rows)))


def grid(
    table: Table,
    scale: Scale,
    out: Path,
    results: Sequence[Result],
    rows: Sequence[Row],
    *,
    hide: Sequence[str] = (),
) -> tuple[list[str], list[list[str]]]:
    """Return the header and the lines of a table; ``hide`` names columns to leave out."""
    is_accuracy = table.kind == "accuracy"
    every = columns_of(table, scale, out, results) if is_accuracy else {}
    columns = {name: show for name, show in every.items() if name not in hide}
    lines = []
    for row in rows:
        own = [result for result in results if result["cell"] == row.cell]
        numbers = row_texts(row, 2 if is_accuracy else 3)
        lines.append([row.label, *numbers, *(show(own) for show in columns.values())])
    return ["cell", "measured", "seeds", "published", "difference", *columns], lines


def _statements(table: Table, scale: Scale, results: Sequence[Result]) -> list[str]:
    """Say what is reduced and what deviates, once for every different set of settings."""
    lines = []
    if scale == "small":
        lines += ["**Not the paper's setting.** Reduced:", ""]
        lines += [f"- {text}" for text in reduced_texts(results)] + [""]
    if table.kind == "accuracy" and list(table.values) != ["last"]:
        lines += [f"Compared: {'; '.join(VALUES[v] for v in table.values)}.", ""]
    deviations = sorted({text for result in results for text in result["deviations"]})
    if deviations:
        lines += ["Deviations:", "", *(f"- {text}" for text in deviations), ""]
    return lines


def columns_of(
    table: Table, scale: Scale, out: Path, results: Sequence[Result]
) -> dict[str, Column]:
    """Return what is shown beside the accuracies of a table."""
    columns = {
        name: show
        for name, show in _COLUMNS.items()
        if name not in _JUDGED
        or (name.partition(":")[0] in table.paper.shows and any(show([r]) for r in results))
    }
    if table.paper.clean and not table.name.endswith(f"/{table.paper.clean}"):
        columns["clean labels"] = clean_column(table.paper, scale, out)
    return columns


def reduced_texts(results: Iterable[Result]) -> list[str]:
    """Return what is reduced, with the cells it holds for."""
    cells: dict[str, list[str]] = {}
    for result in results:
        for key, value in result["reduced"].items():
            paper = f" (paper {value['paper']})" if "paper" in value else ""
            here = value["here"]
            if here is None:  # the setting leaves a stage's rounds to the method
                stage = key.removeprefix("method.").removesuffix("_rounds")
                here = result["series"]["stage"].count(stage) or None
            dataset, method = (result["cell"].split("/")[i] for i in (0, -1))
            where = method if key.startswith("method") else dataset
            cells.setdefault(f"{key}: {here}{paper}", []).append(where)
    return [f"{text}, {', '.join(dict.fromkeys(where))}" for text, where in cells.items()]


def row_texts(row: Row, digits: int) -> list[str]:
    """Return measured, seeds, published and difference as text."""
    measured = "not run" if row.mean is None else f"{row.mean:.{digits}f}"
    if row.sd is not None:
        measured += f" ± {row.sd:.{digits}f}"
    published = "" if row.published is None else f"{row.published.mean:g}"
    if row.published is not None and row.published.sd is not None:
        published += f" ± {row.published.sd:g}"
    difference = "" if row.difference is None else f"{row.difference:+.{digits}f}"
    ranges: list[list[int]] = []  # 0-4 for 0, 1, 2, 3, 4
    for seed in sorted(row.seeds):
        if ranges and seed == ranges[-1][1] + 1:
            ranges[-1][1] = seed
        else:
            ranges.append([seed, seed])
    seeds = ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in ranges)
    return [measured, seeds, published, difference]


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _ari_text(results: Sequence[Result]) -> str:
    ari = _mean(result["ari"] for result in results)
    return "" if ari is None else f"{ari:.3f}"


def _noise_text(results: Sequence[Result]) -> str:
    """Return the share of wrong labels, before and after a correction."""
    before, after = (_mean(r["noise"][key] for r in results) for key in ("before", "after"))
    if before is None or after is None:
        return ""
    return f"{100 * before:.1f}" + (f" → {100 * after:.1f}" if after != before else "")


def _minutes_text(results: Sequence[Result]) -> str:
    # Without the setup: the first run of a machine computes everybody's features there.
    minutes = _mean(r["seconds"].get("rounds", r["seconds"]["total"]) / 60 for r in results)
    again = "; optimum's training" if any("reused_from" in result for result in results) else ""
    return "" if minutes is None else f"{minutes:.1f}{again}"


def _shares(name: str) -> Column:
    """Return the column with precision and recall, in per cent, of what is stored as ``name``."""

    def show(results: Sequence[Result]) -> str:
        scores = [result[name] for result in results if result.get(name)]
        both = [_mean(score[key] for score in scores) for key in ("precision", "recall")]
        if both == [None, None]:
            return ""
        return " / ".join("" if share is None else f"{100 * share:.1f}" for share in both)

    return show


Column = Callable[[Sequence[Result]], str]
_COLUMNS: dict[str, Column] = {
    "ARI": _ari_text,
    "noise %": _noise_text,
    "rounds": lambda results: ", ".join(str(n) for n in sorted({r["rounds"] for r in results})),
    "MB up / down": lambda results: " / ".join(
        f"{(_mean(result['bytes'][way] for result in results) or 0) / 1e6:.1f}"
        for way in ("up", "down")
    ),
    "minutes a run": _minutes_text,
    "labels kept: precision / recall %": _shares("selection_last10"),
    "noisy clients: precision / recall %": _shares("noisy_clients"),
}
_JUDGED = ("ARI", *list(_COLUMNS)[-2:])
"""Columns of the papers that show them, where a result has them: agreement of the groups; label
precision and recall over the last ten rounds; clients taken for noisy, at the end."""


def clean_column(paper: Paper, scale: Scale, out: Path) -> Column:
    """Return the column with the accuracy that the same setting reaches with clean labels."""
    table = TABLES[f"{paper.name}/{paper.clean}"]
    clean = {row.cell: row for row in rows_of(table, read_results(out, table, scale))}

    def show(results: Sequence[Result]) -> str:
        if not results:
            return ""
        place = results[0]["cell"].rpartition("/")[0]
        row = clean.get(f"{place}/{table.rows[0]}")
        return "" if row is None or row.mean is None else f"{row.mean:.2f}"

    return show


def paired_differences(paper: Paper, out: Path, scale: Scale) -> list[tuple[str, str, int, float]]:
    """Return (noise, dataset/m, seed, FB-NLL minus FB-NLL(-)) wherever both were run."""
    found = []
    for noise, pair in paper.pairs.items():
        with_it, without = (
            {
                (r["cell"].rpartition("/")[0], r["seed"]): r["accuracy_percent"]
                for r in read_results(out, TABLES[f"{paper.name}/{table}"], scale)
                if r["cell"].endswith(f"/{method}")
            }
            for table, method in zip(pair, ("fb_nll", "fb_nll_minus"), strict=True)
        )
        found += [
            (noise, *place, with_it[place] - without[place])
            for place in sorted(with_it.keys() & without.keys())
        ]
    return found


def _paired(paper: Paper, out: Path, scale: Scale) -> str:
    pairs = paired_differences(paper, out, scale)
    if not pairs:
        return ""
    mean = sum(pair[3] for pair in pairs) / len(pairs)
    worse = sum(pair[3] < 0 for pair in pairs)
    header = ["noise", "cell", "seed", "difference"]
    lines = [
        f"## FB-NLL minus FB-NLL(-), scale {scale}",
        "",
        f"Mean of {len(pairs)} paired differences: {mean:+.2f} points; {worse} below zero.",
        "",
        *_markdown(header, [[a, b, str(c), f"{d:+.2f}"] for a, b, c, d in pairs]),
    ]
    return "\n".join(lines)


def _not_run(found: dict[tuple[str, Scale], list[Result]]) -> str:
    """List every cell of the papers that has no result at any scale, or only a reduced one."""
    lines = ["## Not run", ""]
    for name, table in TABLES.items():
        done: dict[Scale, set[str]] = {
            scale: {r["cell"] for r in found.get((name, scale), [])} for scale in SCALES
        }
        reduced = [c.address for c in table.cells if c.address in done["small"] - done["full"]]
        missing = [c.address for c in table.cells if c.address not in done["small"] | done["full"]]
        if reduced:
            lines.append(f"- {name}, only at scale small: {_cells(table, reduced)}")
        if missing:
            lines.append(f"- {name}, not at all: {_cells(table, missing)}")
    return "\n".join(lines) if len(lines) > 2 else ""


def _cells(table: Table, addresses: Sequence[str]) -> str:
    """Name cells of a table as ``--cells`` takes them, whole parts of it by one pattern."""
    others = {cell.address for cell in table.cells} - set(addresses)
    if not others:
        return f"all {len(addresses)} cells"
    patterns = []
    for address in addresses:
        starts = [address[: i + 1] for i, letter in enumerate(address) if letter == "/"]
        free = [s for s in starts if not any(other.startswith(s) for other in others)]
        patterns.append(f"`{free[0]}*`" if free else f"`{address}`")
    return ", ".join(dict.fromkeys(patterns))


def _markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [header, ["---"] * len(header), *rows]
    return [f"| {' | '.join(line)} |" for line in lines]
