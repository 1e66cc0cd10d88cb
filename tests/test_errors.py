"""Errors cross processes and end in an exit code."""

from __future__ import annotations

import pickle

import pytest

from raysim import errors
from raysim.errors import ClientFailed, RaysimError, ServerFailed
from raysim.protocols import Where

PLAIN = [
    value
    for value in vars(errors).values()
    if isinstance(value, type)
    and issubclass(value, RaysimError)
    and value not in (ClientFailed, ServerFailed)
]


@pytest.mark.parametrize("kind", PLAIN)
def test_a_message_survives_pickling(kind):
    wrong = kind("what is wrong, what was got; what to do")

    again = pickle.loads(pickle.dumps(wrong))

    assert type(again) is kind
    assert str(again) == str(wrong)


def test_a_failed_client_says_who_where_and_why():
    wrong = ClientFailed(
        7, "train_task", "ValueError: boom", Where("train", 2, 20), "Traceback ..."
    )

    said = "client 7 failed in train round 3/20 while running train_task: ValueError: boom"
    assert str(wrong) == said


def test_a_failed_client_outside_a_round_says_who_and_why():
    assert str(ClientFailed(7, "task", "boom")) == "client 7 failed while running task: boom"


def test_a_failed_client_keeps_its_fields_when_pickled():
    wrong = ClientFailed(
        7, "train_task", "ValueError: boom", Where("train", 2, 20), "Traceback ..."
    )

    again = pickle.loads(pickle.dumps(wrong))

    assert str(again) == str(wrong)
    assert (again.client, again.task, again.reason) == (7, "train_task", "ValueError: boom")
    assert (again.where, again.trace) == (Where("train", 2, 20), "Traceback ...")


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (errors.ConfigError, 2),
        (errors.DataError, 2),
        (errors.OutputError, 2),
        (errors.EnvironmentNotFit, 3),
        (errors.CheckpointError, 1),
        (errors.WorkerLost, 1),
        (errors.ClientFailed, 1),
        (errors.Interrupted, 130),
    ],
)
def test_exit_codes_are_those_of_the_help_text(kind, code):
    assert kind.exit_code == code


def test_one_except_clause_catches_them_all():
    assert all(issubclass(kind, RaysimError) for kind in [*PLAIN, ClientFailed])
    assert not issubclass(RaysimError, ValueError)


def test_a_server_failure_keeps_its_parts_after_pickling():
    wrong = ServerFailed("score", "ValueError: no", Where("correct", 0, 1), "trace")

    again = pickle.loads(pickle.dumps(wrong))

    assert (again.task, again.reason, again.where, again.trace) == (
        "score",
        "ValueError: no",
        Where("correct", 0, 1),
        "trace",
    )
    assert (
        str(again) == "the server failed in correct round 1/1 while running score: ValueError: no"
    )
