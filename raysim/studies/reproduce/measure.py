"""What a back end of the study does for one run of a table."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from raysim import __version__
from raysim.config import RunConfig, load_config
from raysim.runs.record import RoundRecord, newest
from raysim.studies.reproduce import passes, similarity
from raysim.studies.reproduce.configs import config_digest, differences, public_config
from raysim.studies.reproduce.results import FORMAT, Result, read_result, write_result
from raysim.studies.study import Tell, tell_rounds

DIGITS = 5
MEASURED: dict[str, Any] = {"similarity": similarity, "costs": passes}
"""Kinds of tables that are no training runs, and what measures them."""


def measure(told: Mapping[str, Any], tell: Tell) -> dict[str, Any]:
    """Measure and write the result of one run; return what is told of it."""
    started = time.perf_counter()
    result = {"format": FORMAT, **told["head"], "raysim": __version__, "machine": machine_class()}
    if told["kind"] in MEASURED:
        measured = MEASURED[told["kind"]].measure(result["name"], result["seed"])
        result |= {**measured, "seconds": {}}
    else:
        config = load_config(told["config"])
        result |= _reused(told, config, tell) or _trained(told, config, tell)
    result["seconds"].setdefault("total", round(time.perf_counter() - started, 3))
    write_result(Path(told["goal"]), result)
    if "values" in result:
        return {"values": len(result["values"])}
    remark = ", optimum's training reused" if "reused_from" in result else ""
    return {"accuracy": result["accuracy"], "remark": remark}


# ---- training ------------------------------------------------------------------------------


def _trained(told: Mapping[str, Any], config: RunConfig, tell: Tell) -> Result:
    from raysim.experiment import Experiment

    experiment = Experiment(config)
    resume = experiment.folder.is_started and not told["force"]
    run = experiment.run(force=told["force"], resume=resume, listeners=[tell_rounds(tell)])
    environment = experiment.folder.read("environment.json")
    return {
        **_scores(run.summary, experiment.folder.records()),
        "config": public_config(config),
        "config_digest": config_digest(config),
        "data": environment["data"],
        "packages": environment["packages"],
    }


def _scores(summary: Mapping[str, Any], records: Sequence[RoundRecord]) -> Result:
    """Return the numbers of a finished run that tables are made of."""
    scored = [(r, r.accuracy["mean"]) for r in records if r.accuracy is not None]
    accuracies = [mean for _, mean in scored]
    accuracy, sent = summary["accuracy"]["mean"], summary["bytes"]
    series = {
        "stage": [r.stage for r, _ in scored],
        "round": [r.round for r, _ in scored],
        "accuracy": _rounded(accuracies),
        "test_loss": _rounded([r.test_loss for r, _ in scored]),
        "loss": _rounded([r.loss for r, _ in scored]),
        "test_loss_by_task": [_rounded((r.by_task or {}).get("loss", [])) for r, _ in scored],
    }
    return {
        "accuracy": accuracy,
        "accuracy_percent": round(100 * accuracy, 4),
        "accuracy_last5": _rounded([sum(accuracies[-5:]) / len(accuracies[-5:])])[0],
        "accuracy_last10": _rounded([sum(accuracies[-10:]) / len(accuracies[-10:])])[0],
        "accuracy_best": max(_rounded(accuracies)),
        "top5": _rounded([(scored[-1][0].top5 or {}).get("mean")])[0],
        "selection": newest(records, "selection"),
        "selection_last10": _mean_selection(records),
        "noisy_clients": newest(records, "noisy_clients"),
        "per_client": _rounded(summary["accuracy"]["per_client"]),
        "series": series,
        "rounds": summary["rounds"],
        "seconds": dict(summary["seconds"]),
        "bytes": {"up": sent["up"], "down": sent["down"], "messages": summary["messages"]},
        "noise": {k: summary["labels"][f"noise_{k}"] for k in ("before", "after")},
        "labels": summary["labels"],
        "correction": summary["correction"],
        "ari": summary["ari"],
        "nmi": summary.get("nmi"),
        "association": summary.get("association"),
        "groups": summary["groups"],
        "rank": next((r.rank for r in records if r.rank is not None), None),
        "digest": summary["digest"],
    }


def _mean_selection(records: Sequence[RoundRecord]) -> dict[str, float | None] | None:
    """Return label precision and recall over the last ten rounds: who takes part changes."""
    selections = [record.selection for record in records if record.selection is not None][-10:]
    means: dict[str, float | None] = {}
    for name in ("precision", "recall", "f_score"):
        known = [score for scores in selections if (score := scores[name]) is not None]
        means[name] = round(sum(known) / len(known), DIGITS) if known else None
    return means if selections else None


def _rounded(values: Sequence[float | None]) -> list[Any]:
    return [None if value is None else round(value, DIGITS) for value in values]


# ---- optimum's training, where the groups are the same ---------------------------------------


def _reused(told: Mapping[str, Any], config: RunConfig, tell: Tell) -> Result | None:
    """Return optimum's result as this method's own if the groups are identical, else None.

    Then training is bit-identical too: all groups start from the same weights, and random streams
    are keyed by client and round, not by group.
    """
    path = Path(told["optimum"]["path"]) if told["optimum"] else None
    optimum = read_result(path) if path is not None and path.is_file() else None
    if optimum is None or differences(load_config(told["optimum"]["config"]), optimum["config"]):
        return None
    short = replace(config.train, rounds=1)
    probe = _trained(told, replace(config, train=short, output=f"{config.output}-groups"), tell)
    if not same_groups(probe["groups"], optimum["groups"]):
        return None
    messages = {  # optimum's, and those by which the groups were found
        way: {**{m: n for m, n in probe["bytes"]["messages"][way].items() if m != "model"}, **sent}
        for way, sent in optimum["bytes"]["messages"].items()
    }
    head = ("name", "cell", "published", "reduced", "deviations", "raysim", "machine")
    return {
        **{key: value for key, value in optimum.items() if key not in head},
        **{key: probe[key] for key in ("ari", "groups", "rank")},
        "bytes": {
            **{way: sum(sent.values()) for way, sent in messages.items()},
            "messages": messages,
        },
        "seconds": {"total": probe["seconds"]["total"], "reused": optimum["seconds"]["total"]},
        "config": public_config(config),
        "config_digest": config_digest(config),
        "reused_from": {"name": optimum["name"], "cell": optimum["cell"]},
    }


def same_groups(a: Sequence[int] | None, b: Sequence[int] | None) -> bool:
    """Whether two groupings are equal up to the names of the groups."""
    if a is None or b is None or len(a) != len(b):
        return False
    return len(set(zip(a, b, strict=True))) == len(set(a)) == len(set(b))


def machine_class() -> dict[str, Any]:
    """Return what explains the wall time: no host name, no path."""
    return {
        "cpus": os.cpu_count(),
        "processor": _processor(Path("/proc/cpuinfo")) or platform.processor() or "unknown",
        "system": f"{platform.system()} {platform.machine()}",
    }


def _processor(path: Path) -> str | None:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else None
