"""The tables of a report, and how they look in Markdown and LaTeX."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import combinations, product

from raysim.report import facts
from raysim.report.records import Run
from raysim.report.report import Cell, Table
from raysim.report.series import Series, by_setting
from raysim.report.statistics import LEVEL, mean_over_seeds, paired_difference
from raysim.runs.record import finite_number

ALL_PAIRS = 6
"""Every pair of up to this many methods is compared; of more, the best one with each other."""
NONE = Cell("-", None)
JUDGES = {"selection": "the method", "judged": "the final model"}
RATES = ("precision %", "recall %")
Value = Callable[[Run], float | None]


def make_tables(series: Sequence[Series]) -> list[Table]:
    """Return every table that the runs have rows for; names may repeat."""
    tables = [summary_table(series), differences_table(series)]
    tables += [task_table(setting, own) for setting, own in by_setting(series).items()]
    tables += [judgements_table(series), noisy_clients_table(series)]
    return [table for table in tables if table.rows]


# ---- summary -------------------------------------------------------------------------------


def summary_table(series: Sequence[Series]) -> Table:
    best = _best(series, facts.accuracy), _best(series, facts.last_accuracies)
    best_ever = _best(series, facts.best_accuracy)
    top5 = partial(_recorded, "top5", "mean")
    has_top5 = any(top5(run) is not None for one in series for run in one.runs)
    rows = []
    for one in series:
        count, seeds = str(len(one.runs)), "seeds " + ", ".join(str(run.seed) for run in one.runs)
        if not one.is_finished:
            seeds += f"; {one.progress}"
            count += f" ({one.runs[0].rounds_done}/{one.runs[0].rounds} rounds)"
        rows.append(
            [
                Cell(one.label, one.label, note=one.progress),
                Cell(count, float(len(one.runs)), note=seeds),
                _mean(one, facts.accuracy, 100, 2, best=one in best[0]),
                _mean(one, facts.last_accuracies, 100, 2, best=one in best[1]),
                _mean(one, facts.best_accuracy, 100, 2, best=one in best_ever),
                *([_mean(one, top5, 100, 2)] if has_top5 else []),
                _mean(one, facts.ari, 1, 3),
                _mean(one, lambda run: facts.noise(run, "before"), 100, 2),
                _mean(one, lambda run: facts.noise(run, "after"), 100, 2),
                _mean(one, lambda run: facts.megabytes(run, "up"), 1, 2, with_sd=False),
                _mean(one, lambda run: facts.megabytes(run, "down"), 1, 2, with_sd=False),
                _mean(one, facts.seconds, 1, 1, with_sd=False),
                _mean(one, facts.restarts, 1, 0, with_sd=False),
            ]
        )
    return Table(
        name="summary",
        title="Summary",
        caption=(
            "Mean ± sample sd over seeds of the mean accuracy over clients, each on its own task: "
            f"in the last round, over the last {facts.LAST} evaluations, and the best one (which a "
            "real federation could not pick). Best in bold among finished runs of one setting. "
            "ARI: agreement of groups and tasks. Noise: share of wrong training labels before and "
            "after correction. MB, seconds and restarts: mean over seeds."
        ),
        columns=[
            *("method", "seeds", "accuracy %", f"last {facts.LAST} %", "best %"),
            *(["top-5 %"] if has_top5 else []),
            *("ARI", "noise before %", "noise after %", "up MB", "down MB", "seconds", "restarts"),
        ],
        rows=rows,
    )


def _recorded(key: str, name: str, run: Run) -> float | None:
    """Return a number of what was recorded last under ``key``."""
    return finite_number(run.last(key), name)


def _mean(
    one: Series,
    value: Value,
    scale: float,
    digits: int,
    *,
    best: bool = False,
    with_sd: bool = True,
) -> Cell:
    values = [value(run) for run in one.runs]
    found = mean_over_seeds([None if v is None else scale * v for v in values])
    if found is None:
        return NONE
    text = f"{found.mean:.{digits}f}"
    if with_sd and found.sd is not None:
        text += f" ± {found.sd:.{digits}f}"
    shown = ["-" if v is None else f"{scale * v:.4g}" for v in values]
    single = [f"seed {run.seed}: {word}" for run, word in zip(one.runs, shown, strict=True)]
    note = "; ".join(single) if len(single) > 1 else ""
    return Cell(text, found.mean, best=best, note=note)


def _best(series: Sequence[Series], value: Value) -> list[Series]:
    """Return the best finished series of every setting that has several; ties share it."""
    best = []
    for own in by_setting(series).values():
        means = [(mean_over_seeds([value(run) for run in s.runs]), s) for s in own if s.is_finished]
        known = [(mean.mean, s) for mean, s in means if mean is not None]
        if len(known) > 1:
            top = max(mean for mean, _ in known)
            best += [s for mean, s in known if mean == top]
    return best


# ---- differences ---------------------------------------------------------------------------


def differences_table(series: Sequence[Series]) -> Table:
    rows = []
    for own in by_setting(series).values():
        finished = [one for one in own if one.is_finished]
        pairs = list(combinations(finished, 2))
        if len(finished) > ALL_PAIRS:
            top = _best(finished, facts.accuracy)[:1]
            pairs = [(one, other) for one in top for other in finished if other is not one]
        rows += [_difference_row(*pair) for pair in pairs]
    return Table(
        name="differences",
        title="Paired differences",
        caption=(
            "Accuracy of the first method minus that of the second, in points, over the seeds both "
            f"have: mean and {LEVEL:.0%} interval (Student's t, n - 1 degrees of freedom; not "
            "corrected for the number of comparisons). With one common seed there is no interval. "
            f"Every pair of up to {ALL_PAIRS} methods; of more, the best one against each other."
        ),
        columns=["method", "minus", "difference", "interval", "common seeds"],
        rows=[row for row in rows if row],
    )


def _difference_row(ours: Series, theirs: Series) -> list[Cell]:
    found = paired_difference(_by_seed(ours), _by_seed(theirs))
    if found is None:
        return []
    interval = Cell("-", None, note="one common seed")
    if found.low is not None and found.high is not None:
        text = f"[{100 * found.low:+.2f}, {100 * found.high:+.2f}]"
        interval = Cell(text, 100 * found.low)
    return [
        Cell(ours.label, ours.label),
        Cell(theirs.label, theirs.label),
        Cell(f"{100 * found.mean:+.2f}", 100 * found.mean),
        interval,
        Cell(str(found.n), float(found.n)),
    ]


def _by_seed(one: Series) -> dict[int, float]:
    found = {run.seed: facts.accuracy(run) for run in one.runs}
    return {seed: value for seed, value in found.items() if value is not None}


# ---- tasks and clients ---------------------------------------------------------------------


def task_table(setting: str, series: Sequence[Series]) -> Table:
    own = [one for one in series if any(facts.by_task(run) for run in one.runs)]
    count = max((len(facts.by_task(r) or ()) for one in own for r in one.runs), default=0)
    tasks = [f"task {i + 1}" for i in range(count)]
    names = facts.task_names([run for one in own for run in one.runs], count)

    def on_task(i: int, run: Run) -> float | None:
        found = facts.by_task(run)
        return found[i] if found is not None and i < len(found) else None

    def worst(run: Run) -> float | None:
        return min(facts.per_client(run) or (), default=None)

    values = [partial(on_task, i) for i in range(count)]
    top = [_best(own, value) for value in values]
    rows = []
    for one in own:
        cells = [_mean(one, v, 100, 2, best=one in b) for v, b in zip(values, top, strict=True)]
        spread = [_mean(one, worst, 100, 2), _mean(one, facts.sd_of_clients, 100, 2)]
        rows.append([Cell(one.label, one.label, note=one.progress), *cells, *spread])
    classes = "" if names == tasks else " Classes: " + "; ".join(names) + "."
    return Table(
        name="tasks",
        title=f"Accuracy per task: {setting}",
        caption=(
            "Per cent in the last round, mean ± sd over seeds; the lowest accuracy of a client, "
            f"and the sd over clients.{classes}"
        ),
        columns=["method", *tasks, "worst client", "sd over clients"],
        rows=rows,
    )


def judgements_table(series: Sequence[Series]) -> Table:
    """Return how well single labels were judged, by methods and by final models."""
    rows = []
    for one, (key, who) in product(series, JUDGES.items()):
        scores = [partial(_recorded, key, name) for name in ("precision", "recall", "f_score")]
        scores.append(partial(_recorded, f"{key}_of_wrong", "f_score"))
        if any(run.last(key) for run in one.runs):
            cells = [_mean(one, score, 100, 2) for score in scores]
            rows.append([Cell(one.label, one.label, note=one.progress), Cell(who, who), *cells])
    return Table(
        name="judgements",
        title="How well labels were judged",
        caption=(
            "The newest judgement, means over the clients that made it: precision and recall of "
            "the labels judged clean, their F-score, and the F-score of the others as wrong labels "
            "(clients without any are left out). The final model judges the given labels by one "
            "rule for all methods (evaluate.f_score)."
        ),
        columns=["method", "judged by", *RATES, "F-score %", "F-score of wrong %"],
        rows=rows,
    )


def noisy_clients_table(series: Sequence[Series]) -> Table:
    """Return how well clients with noise were found, by the methods that look for them."""

    def score(name: str) -> Value:
        return partial(_recorded, "noisy_clients", name)

    def found(run: Run) -> float | None:
        noisy = run.last("noisy_clients")
        clients = noisy.get("found") if isinstance(noisy, dict) else None
        return float(len(clients)) if isinstance(clients, list) else None

    rows = [
        [
            Cell(one.label, one.label, note=one.progress),
            _mean(one, found, 1, 1, with_sd=False),
            *(_mean(one, score(name), 100, 2) for name in ("precision", "recall", "f1", "auroc")),
            _mean(one, score("correlation"), 1, 3),
        ]
        for one in series
        if any(run.last("noisy_clients") for run in one.runs)
    ]
    return Table(
        name="noisy-clients",
        title="Clients taken for noisy",
        caption=(
            "The newest judgement of the methods that make one, against the clients that hold a "
            "wrong label (after FB-NLL's repair, where it came first); AUROC of the scores behind "
            "it; correlation of estimated and true shares of wrong labels."
        ),
        columns=["method", "found", *RATES, "F1 %", "AUROC %", "correlation"],
        rows=rows,
    )
