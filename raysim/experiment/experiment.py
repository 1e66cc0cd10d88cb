"""One run: config -> data -> federation -> method -> result."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from raysim.config import (
    FREE_TO_CHANGE,
    RunConfig,
    changed_keys,
    choice_name,
    config_yaml,
    dump_config,
    flat_values,
    load_config,
    load_saved,
)
from raysim.data.store import content_digest
from raysim.data.world import DriverData
from raysim.errors import ConfigError, DataError, OutputError
from raysim.experiment.context import RoundContext
from raysim.experiment.evaluator import BlindEvaluator, Evaluator
from raysim.experiment.rounds import LeftEarly, ModelShape, Progress, Rounds
from raysim.methods.method import check_method, stages_of, uses_of
from raysim.models.params import num_parameters
from raysim.protocols import Federation, Where
from raysim.runs.environment import describe_environment
from raysim.runs.folder import RunFolder
from raysim.runs.models import Commit, write_models
from raysim.runs.record import (
    RoundRecord,
    association,
    bytes_by_message,
    correction,
    newest,
    records_digest,
)
from raysim.runs.results import RunResult
from raysim.runtime.coordinator import Coordinator, Listener, MakeContext
from raysim.runtime.events import keep_logs
from raysim.runtime.local import LocalFederation
from raysim.runtime.placement import describe_plan
from raysim.storage.files import finite
from raysim.storage.objects import below
from raysim.trackers import check_trackers, tracking

log = logging.getLogger(__name__)
FINAL = ("top5", "noisy_clients", "selection", "selection_of_wrong", "judged", "judged_of_wrong")
"""Records of which the newest is part of the result."""
DATA = {
    "digest": "images and labels of data.dataset",
    "split": "split of data.partition",
    "labels": "given labels of data.noise",
    "noise": "noise levels of data.noise",
    "features": "features of data.features",
}
"""What a run's data is told by, and what it is called."""
FEATURE_ROWS = 10_000
"""Rows of features, spread over all, that their digest covers."""
SMALL_JOB = 2e11
"""Multiply-adds of training (about a minute) up to which ``kind: auto`` needs no actors."""


class Experiment:
    """A config made ready to run. Nothing is written before everything that can be checked is."""

    def __init__(self, config: RunConfig, *, base_dir: str | Path = ".") -> None:
        self.config = config.resolved()
        self.folder = RunFolder(below(base_dir, config.run_dir()))
        self._started = time.perf_counter()

    def run(
        self,
        *,
        resume: bool | Literal["auto"] = False,
        force: bool = False,
        listeners: Sequence[Listener] = (),
    ) -> RunResult:
        """Run to the end (or go on from the last commit) and return the result.

        ``resume="auto"`` also takes a directory in which no run has begun.
        """
        with self.rounds(resume=resume, force=force, listeners=listeners) as rounds:
            return rounds.finish()

    @contextlib.contextmanager
    def rounds(
        self,
        *,
        resume: bool | Literal["auto"] = False,
        force: bool = False,
        listeners: Sequence[Listener] = (),
    ) -> Iterator[Rounds]:
        """Give the rounds one at a time: ``with experiment.rounds() as rounds: ...``.

        Leaving the block early commits what was done; ``resume=True`` goes on to the same bits.
        """
        self._started = time.perf_counter()
        resume = self.folder.check(resume=resume, force=force)
        if resume:
            self._check_same_config()
            self.folder.verify()
            if self.folder.is_finished:
                yield Rounds(None, RunResult(self.folder.read("result.json"), self.folder.path))
                return
        check_trackers(self.config.track, self.folder)
        data = self.prepare()
        if resume:
            self._check_same_data(data)
        with self._federation(data) as federation:
            if not isinstance(federation, LocalFederation):
                from raysim.runtime.ray.inspection import check_reachable

                check_reachable(self.folder.root)  # every node of the cluster must reach it
            self.folder.open(force=force)
            try:
                with contextlib.suppress(LeftEarly), self._log_file(federation) as ours:
                    every = [*ours, *listeners]
                    with self._rounds(data, federation, resume=resume, listeners=every) as rounds:
                        yield rounds
            finally:
                self.folder.close()

    def __repr__(self) -> str:
        config = self.config
        who = f"{config.method_label} on {choice_name(config.data.dataset)}"
        return f"Experiment({who}, seed {config.seed}; {self.folder.path})"

    def prepare(self) -> DriverData:
        """Load the data and refuse whatever cannot work, before any actor starts."""
        config = self.config
        if config.train.rounds < 1:
            raise ConfigError(
                f"train.rounds must be at least 1, got {config.train.rounds}; raise it"
            )
        stateless = getattr(config.method, "stateless", None)
        config.runtime.check_deadline(config.method_label, stateless)
        data = DriverData(config.data, config.seed)
        data.check_privileges(config.method.privileges)
        config.model.check(data.image_shape)
        config.server.check(config.train)
        uses = uses_of(config)
        check_method(config, classes=data.classes, dimensions=data.dimensions(uses))
        if "correction" in uses:
            data.check_clean_classes()
        world = data.spec().open()
        for use in uses:  # computed once per node; NaN is refused here
            world.features(use, data.clean[0][:1])
        return data

    @contextlib.contextmanager
    def _rounds(
        self,
        data: DriverData,
        federation: Federation,
        *,
        resume: bool,
        listeners: Sequence[Listener],
    ) -> Iterator[Rounds]:
        self._write_head(data, federation)
        evaluator = _evaluator(data)
        true = evaluator.true_counts(data.classes)
        arrays = {} if true is None else {"labels_true": true}
        for name, array in {**arrays, **evaluator.arrays("given", data.classes)}.items():
            self.folder.artifact(name, array)  # for reports, beside the corrected labels
        self.folder.write_artifacts()
        coordinator = Coordinator(
            federation=federation,
            stages=stages_of(self.config),
            folder=self.folder,
            context=self._contexts(data, federation, evaluator),
            every=self.config.checkpoint.every,
            max_returns=self.config.runtime.max_restarts,
            listeners=listeners,
        )
        setup_s = time.perf_counter() - self._started

        def conclude() -> RunResult:
            self.folder.check_files()
            final = Commit(coordinator.done, coordinator.state.groups, coordinator.stored)
            summary = self._summary(data, evaluator, federation, coordinator.stored, setup_s)
            write_models(self.folder, final, config=self.config, data=data)
            self.folder.write("result.json", summary)
            return RunResult(summary, self.folder.path)

        coordinator.begin(resume=resume)
        shape = ModelShape(self.config.model, data.image_shape, data.classes)
        rounds = Rounds(Progress(coordinator, federation, shape, self.folder.path, conclude))
        try:
            yield rounds
        finally:
            rounds.leave()
        rounds.refuse_early()  # so that the log does not say that the run is done

    def _contexts(
        self, data: DriverData, federation: Federation, evaluator: Evaluator
    ) -> MakeContext:
        world = data.spec().open()
        names = [stage.name for stage in stages_of(self.config)]
        repaired = set(names[names.index("correct") + 1 :]) if "correct" in names else set()

        def context(where: Where, entry: dict[str, Any]) -> RoundContext:
            return RoundContext(
                federation=federation,
                config=self.config,
                classes=data.classes,
                image_shape=data.image_shape,
                where=where,
                data=data,
                world=world,
                evaluator=evaluator,
                folder=self.folder,
                entry=entry,
                is_repaired=where.stage in repaired,
            )

        return context

    def _write_head(self, data: DriverData, federation: Federation) -> None:
        runtime = getattr(federation, "runtime", self.config.runtime)  # with its shares worked out
        self.folder.write(
            "config.yaml", config_yaml(dataclasses.replace(self.config, runtime=runtime))
        )
        facts = describe_environment()
        facts["data"] = {"name": data.store.name, **self._data_digests(data)}
        facts["federation"] = _described(data)
        facts["actors"] = federation.describe()
        kind, why = runtime_choice(self.config, data)
        facts["runtime"] = {"kind": kind, "why": why}
        log.info("runtime %s: %s", kind, why)
        self.folder.write("environment.json", facts)

    def _summary(
        self,
        data: DriverData,
        evaluator: Evaluator,
        federation: Federation,
        stored: Mapping[str, str],
        setup_s: float,
    ) -> dict[str, Any]:
        records = self.folder.records()
        last = records[-1]
        assert last.accuracy is not None  # the last round evaluates
        labels = newest(records, "labels")
        grouping = next((r for r in reversed(records) if r.groups is not None), RoundRecord())
        messages = {way: bytes_by_message(records, way) for way in ("up", "down")}
        before = evaluator.noise()
        scores = [r.accuracy["mean"] for r in records if r.accuracy is not None][-10:]
        rounds_s = sum(record.seconds for record in records)
        result = {
            "method": self.config.method_label,
            "dataset": choice_name(self.config.data.dataset),
            "seed": self.config.seed,
            "rounds": self.config.train.rounds,
            "accuracy": {**last.accuracy, "per_client": last.per_client},
            "accuracy_last10": sum(scores) / len(scores),
            "ari": grouping.ari,
            "nmi": grouping.nmi,
            "groups": grouping.groups,
            "labels": labels or {"noise_before": before, "noise_after": before},
            "correction": correction(records),
            **{name: newest(records, name) for name in FINAL},
            "association": association(records),
            "bytes": {way: sum(sent.values()) for way, sent in messages.items()},
            "messages": messages,
            "seconds": {
                "setup": round(setup_s, 3),
                "rounds": round(rounds_s, 3),
                "total": round(setup_s + rounds_s, 3),
            },
            "restarts": federation.restarts,
            "digest": {"models": stored, "records": records_digest(records)},
            "clients": len(data.split.clients),
            "run_dir": str(self.folder.path),
        }
        return dict(finite(result))

    def _check_same_config(self) -> None:
        if not self.folder.is_started:
            raise OutputError(
                f"--resume: {self.folder.path} holds no run; start it without --resume"
            )
        saved = load_saved(self.folder.saved_config(), f"{self.folder.path}/config.yaml")
        changed = changed_keys(self.config, saved, ignore=FREE_TO_CHANGE)
        if changed:
            keys = ", ".join(f"{key} (now {new!r}, was {old!r})" for key, new, old in changed)
            raise ConfigError(
                f"--resume: {keys} differ from the config of {self.folder.path}; "
                f"resume with {self.folder.path}/config.yaml, or use --force to start anew"
            )

    def _check_same_data(self, data: DriverData) -> None:
        """Refuse data that the run was not started with; what an older raysim left out is free."""
        try:
            was = self.folder.read("environment.json").get("data", {})
        except FileNotFoundError:
            return
        now = self._data_digests(data)
        changed = [what for name, what in DATA.items() if was.get(name, now[name]) != now[name]]
        if changed:
            raise DataError(
                f"--resume: the {', the '.join(changed)} are not those that {self.folder.path} was "
                "started with; put them back, or use --force to start anew"
            )

    def _data_digests(self, data: DriverData) -> dict[str, str]:
        """Return what tells this run's data from any other."""
        world, split, noisy = data.spec().open(), data.split, data.noisy
        rows = np.sort(np.concatenate([*split.clients, split.server_ids]))
        rows = rows[:: 1 + len(rows) // FEATURE_ROWS]
        return {
            "digest": data.store.digest,
            "split": content_digest(
                [*split.clients, *map(np.array, split.tasks), split.task_of, split.server_ids]
            ),
            "labels": content_digest(noisy.given),
            "noise": content_digest([noisy.rate, noisy.is_noisy, noisy.target]),
            "features": content_digest(world.features(u, rows) for u in uses_of(self.config)),
        }

    @contextlib.contextmanager
    def _federation(self, data: DriverData) -> Iterator[Federation]:
        federation = make_federation(self.config, data)
        try:
            yield federation
        finally:
            federation.close()

    @contextlib.contextmanager
    def _log_file(self, federation: Federation) -> Iterator[list[Listener]]:
        """Keep run.log and events.jsonl; yield who listens besides the caller's listeners."""
        config = self.config
        run = {"name": config.name, "method": config.method_label, "seed": config.seed}
        facts = {**run, "dataset": choice_name(config.data.dataset)}
        plain = flat_values(dump_config(config))
        with (
            keep_logs(self.folder, run=run, where=lambda: federation.where) as events,
            tracking(config.track, self.folder, run=facts, parameters=plain) as told,
        ):
            if isinstance(federation, LocalFederation):
                yield [events, *told]
                return
            from raysim.runtime.ray.metrics import RunMetrics

            yield [events, *told, RunMetrics(run, federation, self.folder)]


def run(
    config: str | Path | Mapping[str, Any] | RunConfig,
    *overrides: str,
    imports: Sequence[str] = (),
    **options: Any,
) -> RunResult:
    """Run a config (a file, a bundled name, plain values) with ``key=value`` overrides.

    ``options`` are those of ``Experiment.run``: ``resume``, ``force``, ``listeners``, ...
    """
    source = dump_config(config) if isinstance(config, RunConfig) else config
    return Experiment(load_config(source, overrides, imports=imports)).run(**options)


def _evaluator(data: DriverData) -> Evaluator:
    """Return who scores this data: one without the truth where it is not known."""
    given, task_of = dict(enumerate(data.noisy.given)), data.split.task_of
    if not data.knows_labels:
        return BlindEvaluator(given, task_of, knows_tasks=data.knows_tasks)
    true = {k: data.true_labels[ids] for k, ids in enumerate(data.split.clients)}
    return Evaluator(true, given, task_of)


def make_federation(config: RunConfig, data: DriverData) -> Federation:
    """Return the federation that ``runtime`` asks for."""
    records, spec = data.client_records(), data.spec()
    # What training needs is imported by actors and driver at the same time, while they start, and
    # before the first task limits the threads of the libraries that are there.
    closed = config.train.kernel == "closed_form"
    warm = ("raysim.models.closed_form" if closed else "raysim.models.networks",)
    if runtime_choice(config, data)[0] == "local":
        importlib.import_module(warm[0])
        return LocalFederation(records, spec)
    from raysim.runtime.ray.federation import RayFederation

    return RayFederation(records, spec, config.runtime, warm=warm, name=config.name)


def preview(config: RunConfig) -> dict[str, Any]:
    """Return who would run where, without starting an actor; raise where it cannot fit."""
    data = DriverData(config.data, config.seed)
    sizes = [len(ids) for ids in data.split.clients]
    kind, why = runtime_choice(config.resolved(), data)
    if kind == "local":
        return {"kind": "local", "why": why, "clients": len(sizes)}
    from raysim.runtime.ray.connection import connect, nodes

    connect(config.runtime)
    return {"kind": "ray", "why": why, **describe_plan(sizes, nodes(), config.runtime)}


def runtime_choice(config: RunConfig, data: DriverData) -> tuple[str, str]:
    """Return "local" or "ray", and why.

    Auto stays in this process for small jobs, where actors cost more, unless settings need them or
    a cluster is named, be it by ``RAY_ADDRESS``: Ray sets it for the jobs that are submitted to it.
    """
    runtime = config.runtime
    if runtime.kind != "auto":
        return runtime.kind, f"runtime.kind is {runtime.kind}"
    asked_for = {
        "runtime.address": runtime.address,
        "runtime.round_deadline_s": runtime.round_deadline_s,
        "runtime.actors": None if runtime.actors == "auto" else runtime.actors,
        "runtime.per_actor.gpus": runtime.per_actor.gpus or None,
    }
    for name, value in asked_for.items():
        if value is not None:
            return "ray", f"{name} is {value}"
    if os.environ.get("RAY_ADDRESS"):
        from raysim.runtime.ray.connection import find_cluster

        name, cluster = find_cluster(None)
        if cluster is not None:
            return "ray", f"{name} is {cluster}"
    params = num_parameters(config.model, data.image_shape, data.classes)
    samples = sum(len(ids) for ids in data.split.clients)
    work = 6.0 * params * samples * config.train.epochs * config.train.rounds
    if work < SMALL_JOB:
        return "local", "a small job is quicker without actors"
    return "ray", "a large job is quicker with actors"


def _described(data: DriverData) -> dict[str, Any]:
    """Return who takes part, for reports: tasks, and the clients' own task and size."""
    return {
        "clients": len(data.split.clients),
        "classes": data.classes,
        "class_names": list(data.store.class_names),
        "tasks": [[int(c) for c in task] for task in data.split.tasks],
        "task_of": [int(task) for task in data.split.task_of],
        "sizes": [len(ids) for ids in data.split.clients],
    }
