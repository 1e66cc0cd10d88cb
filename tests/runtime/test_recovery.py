"""What follows the loss of an actor."""

from __future__ import annotations

import pytest

from raysim.runtime.recovery import GiveUp, Rebuild, decide


def after(restarts: int, max_restarts: int):
    return decide(
        actor="client actor 2", reason="out of memory", restarts=restarts, max_restarts=max_restarts
    )


@pytest.mark.parametrize(("restarts", "max_restarts"), [(0, 1), (0, 3), (2, 3)])
def test_an_actor_is_rebuilt_while_the_limit_is_not_reached(restarts, max_restarts):
    assert after(restarts, max_restarts) == Rebuild()


@pytest.mark.parametrize(("restarts", "max_restarts"), [(0, 0), (3, 3), (4, 3)])
def test_an_actor_lost_once_more_than_allowed_ends_the_run(restarts, max_restarts):
    assert isinstance(after(restarts, max_restarts), GiveUp)


def test_no_restart_at_all_can_be_allowed():
    assert "was lost 1 times" in after(0, 0).message


def test_giving_up_says_who_how_often_why_and_what_to_do():
    message = after(3, 3).message

    assert "client actor 2 was lost 4 times since the last commit" in message
    assert "runtime.max_restarts is 3" in message
    assert "last reason: out of memory" in message
    assert "lower runtime.actors or train.batch_size" in message
    assert "--resume" in message
