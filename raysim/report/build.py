"""From places to a report."""

from __future__ import annotations

from collections.abc import Sequence

from raysim import __version__
from raysim.report.figures import make_figures
from raysim.report.records import Run, read_runs
from raysim.report.report import Report
from raysim.report.series import Series, group_runs
from raysim.report.tables import make_tables


def make_report(places: Sequence[str], title: str = "") -> Report:
    """Read run directories (paths, URLs, folders of runs) and work out tables and figures."""
    found, problems = read_runs(places)
    series, remarks = group_runs(found)
    runs = [run for one in series for run in one.runs]
    tables, figures = make_tables(series), make_figures(series)
    damaged = [problem for run in runs for problem in run.problems]
    return Report(
        title=title or _title(series),
        made=f"raysim {__version__}",
        tables=tables,
        figures=figures,
        methods=[one.label for one in series],
        configs={run.label: run.yaml for run in runs},
        environments={run.label: run.environment for run in runs},
        problems=[*problems, *remarks, *damaged],
    )


def _title(series: Sequence[Series]) -> str:
    methods = list(dict.fromkeys(run.method for one in series for run in one.runs))
    data = list(dict.fromkeys(_dataset(one.runs[0]) for one in series))
    names = ", ".join(methods) if len(methods) <= 5 else f"{len(methods)} methods"
    return f"{names} on {', '.join(data)}"


def _dataset(run: Run) -> str:
    data = run.config.get("data")
    dataset = data.get("dataset") if isinstance(data, dict) else None
    name = dataset.get("name") if isinstance(dataset, dict) else dataset
    return str(name or "unnamed data")
