"""The loop over stages: order, records, commits, interrupts and resuming."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from raysim.errors import CheckpointError, Interrupted, ModelsLost, WorkerLost
from raysim.protocols import ClientRecord, Stage
from raysim.runtime.checkpoint import read_manifest
from raysim.runtime.coordinator import Coordinator
from raysim.runtime.local import LocalFederation
from raysim.runtime.run_folder import RunFolder


def add(client, memory, arguments):
    """Fold the arguments into the client's memory: order and repetition show in the value."""
    value = 3 * int(memory.get("value", 0)) + arguments["number"] + client.id
    return {"value": np.array(value)}, value


def work(context, state):
    """A step that uses memory, a model, groups and values, so that resuming must restore all."""
    number = 10 * len(context.stage) + context.round
    context.record(replies=list(context.federation.map(add, number=number).values()))
    old = state.models.get("group/0")
    weights = np.zeros(2) if old is None else context.federation.get(old)["w"]
    handle = context.federation.put({"w": 2 * weights + number})
    values = {"numbers": [*state.values.get("numbers", []), number]}
    return replace(state, models={"group/0": handle}, groups={0: 1, 2: 0}, values=values)


STAGES = (Stage("group", 1, work), Stage("correct", 2, work), Stage("train", 5, work))
SCHEDULE = [("group", 1), ("correct", 1), ("correct", 2), *(("train", r) for r in range(1, 6))]


class Run:
    """One process that works in a folder; make another one to resume."""

    def __init__(self, path, *, stages=STAGES, every=1, listeners=()) -> None:
        records = [ClientRecord(k, np.arange(1), np.zeros(1, int)) for k in range(3)]
        self.federation = LocalFederation(records, SimpleNamespace(open=lambda: None))
        self.folder = RunFolder(path)
        self.events: list = []
        self.contexts: list = []
        path.mkdir(parents=True, exist_ok=True)
        self.coordinator = Coordinator(
            federation=self.federation,
            stages=stages,
            folder=self.folder,
            context=self.context,
            every=every,
            listeners=[self.events.append, *listeners],
        )

    def context(self, stage, round_id, entry):
        context = SimpleNamespace(
            federation=self.federation, stage=stage.name, round=round_id, record=entry.update
        )
        self.contexts.append((stage.name, round_id, self.federation.where))
        return context

    def __call__(self, *, resume=False):
        return self.coordinator.run(resume=resume)

    def outcome(self, state):
        model = self.federation.get(state.models["group/0"])["w"].tolist()
        records = [{k: v for k, v in r.items() if k != "seconds"} for r in self.folder.records()]
        return model, dict(state.groups), dict(state.values), records


@pytest.fixture
def unbroken(tmp_path):
    run = Run(tmp_path / "unbroken")
    return run.outcome(run())


def breaking(step_number: int, action):
    """The stages, with an action before the work of one round (counted from 1)."""
    seen = 0

    def step(context, state):
        nonlocal seen
        seen += 1
        if seen == step_number:
            action()
        return work(context, state)

    return tuple(Stage(stage.name, stage.rounds, step) for stage in STAGES)


def interrupt(number=signal.SIGINT, times=1):
    def send():
        for _ in range(times):
            os.kill(os.getpid(), number)

    return send


def fail():
    raise ZeroDivisionError


def test_stages_run_in_order_and_say_where_they_are(tmp_path):
    run = Run(tmp_path)
    run()

    assert [(name, r + 1) for name, r, _ in run.contexts] == SCHEDULE
    assert run.contexts[2][2] == "correct round 2/2"
    assert [(r["stage"], r["round"]) for r in run.folder.records()] == SCHEDULE


def test_every_record_has_its_seconds(tmp_path):
    run = Run(tmp_path)
    run()

    assert all(record["seconds"] >= 0 for record in run.folder.records())


def test_listeners_hear_start_then_each_round_before_its_commit(tmp_path):
    run = Run(tmp_path)
    run()

    kinds = [(e.kind, e.stage, e.round) for e in run.events]
    expected = [("start", "", 0)]
    for done, (stage, round_id) in enumerate(SCHEDULE, start=1):
        expected += [("round", stage, round_id), ("commit", "", done)]
    assert kinds[: len(expected)] == expected
    assert run.events[0].rounds == len(SCHEDULE)


def test_a_round_is_on_disk_and_a_commit_exists_when_listeners_hear_of_it(tmp_path):
    seen = []

    def listen(event):
        records, manifest = len(run.folder.records()), read_manifest(run.folder.checkpoint)
        seen.append((event.kind, records, manifest and manifest["finished"]))

    run = Run(tmp_path, listeners=[listen])
    run()

    assert seen[:5] == [
        ("start", 0, None),
        ("round", 1, None),
        ("commit", 1, 1),
        ("round", 2, 1),
        ("commit", 2, 2),
    ]


def test_listeners_are_called_in_the_order_given(tmp_path):
    heard = []
    listeners = [lambda event, i=i: heard.append(i) for i in (1, 2)]

    Run(tmp_path, listeners=listeners)()

    assert heard == [1, 2] * (len(heard) // 2)


@pytest.mark.parametrize(
    ("every", "commits"), [(1, [1, 2, 3, 4, 5, 6, 7, 8]), (2, [1, 3, 5, 7, 8]), (9, [1, 3, 8])]
)
def test_commits_follow_the_cadence_and_end_every_stage(tmp_path, every, commits):
    run = Run(tmp_path, every=every)
    run()

    assert [e.round for e in run.events if e.kind == "commit"] == commits
    assert read_manifest(run.folder.checkpoint)["finished"] == 8


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("broken", range(1, 9))
def test_resuming_after_a_failure_in_any_round_changes_nothing(tmp_path, unbroken, broken, every):
    with pytest.raises(ZeroDivisionError):
        Run(tmp_path / "run", stages=breaking(broken, fail), every=every)()

    again = Run(tmp_path / "run", every=every)
    outcome = again.outcome(again(resume=True))

    assert outcome == unbroken


def test_resuming_starts_after_the_last_commit(tmp_path):
    with pytest.raises(ZeroDivisionError):
        Run(tmp_path, stages=breaking(6, fail))()

    again = Run(tmp_path)
    again(resume=True)

    assert [(name, r + 1) for name, r, _ in again.contexts] == SCHEDULE[5:]
    assert (again.events[0].kind, again.events[0].round) == ("start", 5)


def test_resuming_a_finished_run_does_nothing_and_returns_its_state(tmp_path, unbroken):
    Run(tmp_path / "run")()
    again = Run(tmp_path / "run")

    assert again.outcome(again(resume=True)) == unbroken
    assert again.contexts == []


def test_resuming_without_any_commit_starts_anew(tmp_path, unbroken):
    run = Run(tmp_path / "run")
    run.folder.append({"stage": "group", "round": 1, "uncommitted": True})

    assert run.outcome(run(resume=True)) == unbroken


def test_a_torn_last_record_does_not_stop_a_resume(tmp_path, unbroken):
    with pytest.raises(ZeroDivisionError):
        Run(tmp_path / "run", stages=breaking(4, fail))()
    with (tmp_path / "run" / "rounds.jsonl").open("a") as file:
        file.write('{"stage": "train", "ro')  # the power went while this was written

    again = Run(tmp_path / "run")

    assert again.outcome(again(resume=True)) == unbroken


def test_a_damaged_newest_commit_costs_one_round_only(tmp_path, unbroken, caplog):
    with pytest.raises(ZeroDivisionError):
        Run(tmp_path / "run", stages=breaking(6, fail))()
    (tmp_path / "run" / "checkpoint" / "manifest.json").write_text("{")

    again = Run(tmp_path / "run")

    assert again.outcome(again(resume=True)) == unbroken
    assert "damaged" in caplog.text
    assert again.events[0].round == 4


def test_fewer_records_than_committed_rounds_are_refused(tmp_path):
    run = Run(tmp_path)
    run()
    run.folder.keep_records(3)

    with pytest.raises(CheckpointError, match=r"fewer rounds than its checkpoint \(8\).*--force"):
        Run(tmp_path)(resume=True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_one_interrupt_finishes_the_round_commits_and_stops(tmp_path, unbroken, number):
    run = Run(tmp_path / "run", stages=breaking(5, interrupt(number)), every=9)

    with pytest.raises(Interrupted, match=r"stopped after train round 2/5.*--resume"):
        run()

    assert len(run.folder.records()) == 5
    assert read_manifest(run.folder.checkpoint)["finished"] == 5
    again = Run(tmp_path / "run")
    assert again.outcome(again(resume=True)) == unbroken


def test_a_second_interrupt_stops_at_once_and_keeps_the_last_commit(tmp_path, unbroken):
    run = Run(tmp_path / "run", stages=breaking(5, interrupt(times=2)))

    with pytest.raises(Interrupted, match=r"at once.*--resume"):
        run()

    assert len(run.folder.records()) == 4
    assert read_manifest(run.folder.checkpoint)["finished"] == 4
    again = Run(tmp_path / "run")
    assert again.outcome(again(resume=True)) == unbroken


def test_an_interrupt_in_the_last_round_lets_the_run_finish(tmp_path, unbroken):
    run = Run(tmp_path / "run", stages=breaking(8, interrupt()))

    assert run.outcome(run()) == unbroken


@pytest.mark.parametrize("action", [fail, interrupt(), lambda: None])
def test_the_signal_handlers_are_put_back(tmp_path, action):
    before = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]

    with contextlib.suppress(Interrupted, ZeroDivisionError):
        Run(tmp_path, stages=breaking(2, action))()

    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == before


def test_a_run_outside_the_main_thread_works_without_signals(tmp_path, unbroken):
    run = Run(tmp_path / "run")
    found = []
    thread = threading.Thread(target=lambda: found.append(run()))
    thread.start()
    thread.join()

    assert run.outcome(found[0]) == unbroken


# ---- models that die with their node ---------------------------------------------------------


def lose_models():
    raise ModelsLost("a stored model was lost with its node")


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("broken", range(1, 9))
def test_a_run_that_loses_models_goes_back_to_its_last_commit(tmp_path, unbroken, broken, every):
    run = Run(tmp_path / "lost", stages=breaking(broken, lose_models), every=every)

    assert run.outcome(run()) == unbroken


def test_models_lost_while_going_back_are_looked_for_again(tmp_path, unbroken, monkeypatch):
    run = Run(tmp_path / "lost", stages=breaking(5, lose_models))
    restore, failures = run.federation.restore, [1]

    def fails_once(folder, manifest):
        if failures:
            failures.pop()
            lose_models()
        return restore(folder, manifest)

    monkeypatch.setattr(run.federation, "restore", fails_once)

    assert run.outcome(run()) == unbroken


def test_models_lost_again_and_again_end_the_run(tmp_path):
    def always(context, state):
        lose_models()

    run = Run(tmp_path / "lost", stages=(Stage("train", 2, always),))

    with pytest.raises(WorkerLost, match=r"4 times since the last commit.*max_restarts is 3"):
        run()


def test_late_clients_are_in_the_record_of_their_round_only(tmp_path):
    def step(context, state):
        if context.round == 1:
            context.federation.late.extend([2, 0])
        return state

    run = Run(tmp_path / "late", stages=(Stage("train", 3, step),))
    run()

    assert [r.get("late") for r in run.folder.records()] == [None, [0, 2], None]


# ---- one round at a time -----------------------------------------------------------------------


def taken(run, count, *, resume=False):
    run.coordinator.begin(resume=resume)
    return [run.coordinator.next_round() for _ in range(count)]


@pytest.mark.parametrize("left", range(1, 8))
def test_leaving_after_any_round_commits_it_and_resuming_changes_nothing(tmp_path, unbroken, left):
    run = Run(tmp_path / "run", every=9)
    events = taken(run, left)
    run.coordinator.leave()

    again = Run(tmp_path / "run", every=9)
    outcome = again.outcome(again(resume=True))

    assert [(e.stage, e.round) for e in events] == SCHEDULE[:left]
    assert [(name, r + 1) for name, r, _ in again.contexts] == SCHEDULE[left:]
    assert outcome == unbroken


def test_rounds_taken_one_by_one_end_where_a_run_ends(tmp_path, unbroken):
    run = Run(tmp_path / "run")
    taken(run, 8)

    assert run.coordinator.is_finished
    assert run.outcome(run.coordinator.state) == unbroken


def test_a_round_that_failed_half_way_is_not_committed_on_leaving(tmp_path, unbroken):
    def fails_later(context, state):
        state = work(context, state)
        if (context.stage, context.round) == ("train", 3):
            fail()
        return state

    run = Run(tmp_path / "run", stages=(*STAGES[:2], Stage("train", 5, fails_later)), every=9)
    with pytest.raises(ZeroDivisionError):
        taken(run, 8)
    run.coordinator.leave()

    assert read_manifest(run.folder.checkpoint)["finished"] == 3  # the end of "correct"
    again = Run(tmp_path / "run", every=9)
    assert again.outcome(again(resume=True)) == unbroken


def test_an_interrupt_in_a_round_taken_alone_commits_and_stops(tmp_path, unbroken):
    before = signal.getsignal(signal.SIGINT)
    run = Run(tmp_path / "run", stages=breaking(5, interrupt()), every=9)

    taken(run, 4)
    assert signal.getsignal(signal.SIGINT) is before  # between rounds it is the caller's
    with pytest.raises(Interrupted, match=r"stopped after train round 2/5"):
        run.coordinator.next_round()

    assert signal.getsignal(signal.SIGINT) is before
    again = Run(tmp_path / "run")
    assert again.outcome(again(resume=True)) == unbroken


def test_models_lost_on_leaving_cost_the_uncommitted_rounds(tmp_path, unbroken, monkeypatch):
    run = Run(tmp_path / "run", every=9)
    taken(run, 5)
    monkeypatch.setattr(run.federation, "commit", lambda *_: lose_models())
    run.coordinator.leave()

    assert read_manifest(run.folder.checkpoint)["finished"] == 3
    again = Run(tmp_path / "run")
    assert again.outcome(again(resume=True)) == unbroken
