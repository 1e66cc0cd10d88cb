"""What follows the loss of an actor."""

from __future__ import annotations

import pytest

from raysim.errors import WorkerLost
from raysim.protocols import Where
from raysim.runtime.ray.failures import Losses


def lose(times: int, max_restarts: int) -> Losses:
    """Return the count after actor 2 was lost so many times."""
    losses = Losses("client actor", max_restarts)
    where = Where("train", 0, 5)
    for _ in range(times):
        losses.allow(2, OSError("out of memory"), where=where, during="train_task", node="10.0.0.1")
    return losses


@pytest.mark.parametrize(("times", "max_restarts"), [(1, 1), (1, 3), (3, 3)])
def test_an_actor_is_rebuilt_while_the_limit_is_not_reached(times, max_restarts):
    assert lose(times, max_restarts).restarts == times


@pytest.mark.parametrize(("times", "max_restarts"), [(1, 0), (4, 3), (5, 3)])
def test_an_actor_lost_once_more_than_allowed_ends_the_run(times, max_restarts):
    with pytest.raises(WorkerLost):
        lose(times, max_restarts)


def test_a_commit_gives_an_actor_its_chances_back():
    losses = lose(3, 3)
    losses.forgive()
    losses.allow(2, OSError("again"), where=None, during="start", node="10.0.0.1")

    assert losses.restarts == 4


def test_a_loss_that_was_announced_does_not_count():
    losses = lose(1, 1)
    for _ in range(5):
        given = {"where": None, "during": "move", "node": "10.0.0.1"}
        losses.allow(2, OSError("node gone"), **given, announced=True)

    assert losses.restarts == 1


def test_no_restart_at_all_can_be_allowed():
    with pytest.raises(WorkerLost, match="was lost 1 times"):
        lose(1, 0)


def test_giving_up_says_who_how_often_why_and_what_to_do():
    with pytest.raises(WorkerLost) as caught:
        lose(4, 3)

    message = str(caught.value)
    assert "client actor 2 on node 10.0.0.1 was lost 4 times since the last commit" in message
    assert "runtime.max_restarts is 3" in message
    assert "last reason: out of memory" in message
    assert "lower runtime.actors or train.batch_size" in message
    assert "--resume" in message
