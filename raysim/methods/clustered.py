"""The template of all clustered methods.

Group once, correct labels once, then train inside groups.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from raysim.protocols import ClientId, Context, GroupId, Stage, State, Step
from raysim.steps.merging import train_round


def clustered_stages(
    config: Any, *, group: Step, correct: Step | None = None, train: Step = train_round
) -> tuple[Stage, ...]:
    """Return group -> correct -> train; correction is left out where there is none."""
    stages = [Stage("group", 1, group)]
    if correct is not None:
        stages.append(Stage("correct", 1, correct))
    return (*stages, Stage("train", config.train.rounds, train))


def assign(context: Context, state: State, groups: dict[ClientId, GroupId]) -> State:
    """Return the state with these groups, and let the evaluator score them."""
    context.observe_groups(groups)
    return replace(state, groups=groups)
