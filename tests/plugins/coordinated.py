"""A coordinator over three clients whose memory, model and values show every round it made."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from types import SimpleNamespace

import numpy as np

from raysim.errors import ModelsLost
from raysim.protocols import ClientRecord, Stage
from raysim.runs.folder import RunFolder
from raysim.runtime.coordinator import Coordinator
from raysim.runtime.local import LocalFederation


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

    def context(self, where, entry):
        context = SimpleNamespace(
            federation=self.federation, stage=where.stage, round=where.round, record=entry.update
        )
        self.contexts.append((where, self.federation.where))
        return context

    def __call__(self, *, resume=False):
        return self.coordinator.run(resume=resume)

    def outcome(self, state):
        model = self.federation.get(state.models["group/0"])["w"].tolist()
        records = [
            {k: v for k, v in r.to_json().items() if k != "seconds"} for r in self.folder.records()
        ]
        return model, dict(state.groups), dict(state.values), records


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


def lose_models():
    raise ModelsLost("a stored model was lost with its node")
