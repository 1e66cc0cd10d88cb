"""Which cluster is joined, and what is kept of a run for its metrics."""

from __future__ import annotations

import pytest

from raysim.errors import EnvironmentNotFit
from raysim.runs.record import RoundRecord
from raysim.runtime.ray import connection as session
from raysim.runtime.ray.connection import connect, find_cluster
from raysim.runtime.ray.metrics import Totals
from raysim.settings import RuntimeSettings

NOBODY = "127.0.0.1:1"


@pytest.mark.parametrize(
    ("given", "variable", "found"),
    [
        (None, "", ("runtime.address", None)),
        (None, "10.0.0.1:6379", ("RAY_ADDRESS", "10.0.0.1:6379")),
        ("auto", "10.0.0.1:6379", ("RAY_ADDRESS", "10.0.0.1:6379")),
        ("10.0.0.2:6379", "10.0.0.1:6379", ("runtime.address", "10.0.0.2:6379")),
        (None, "http://127.0.0.1:8265", ("runtime.address", None)),
        ("auto", "https://127.0.0.1:8265", ("runtime.address", "auto")),
    ],
)
def test_a_dashboard_in_the_variable_is_nothing_to_join(monkeypatch, given, variable, found):
    monkeypatch.setenv("RAY_ADDRESS", variable)

    assert find_cluster(given) == found


@pytest.fixture
def not_joined(monkeypatch):
    """Other tests of this process may have started Ray."""
    monkeypatch.setattr(session.ray, "is_initialized", lambda: False)


def test_who_named_the_address_is_named(monkeypatch, not_joined):
    monkeypatch.setenv("RAY_ADDRESS", NOBODY)
    with pytest.raises(EnvironmentNotFit, match="RAY_ADDRESS is"):
        connect(RuntimeSettings())
    with pytest.raises(EnvironmentNotFit, match=r"runtime\.address is"):
        connect(RuntimeSettings(address="127.0.0.1:2"))


def test_ray_never_sees_a_dashboard_as_the_cluster_to_join(monkeypatch, not_joined):
    seen = {}
    monkeypatch.setenv("RAY_ADDRESS", "http://127.0.0.1:8265")
    monkeypatch.setattr(
        session.ray, "init", lambda **_: seen.update(address=session.os.environ.get("RAY_ADDRESS"))
    )

    connect(RuntimeSettings(address="auto"))

    assert seen == {"address": None}
    assert session.os.environ["RAY_ADDRESS"] == "http://127.0.0.1:8265"


def test_a_refused_token_is_an_error_with_advice(monkeypatch, not_joined):
    def init(**_: object) -> None:
        raise session.AuthenticationError("the token is invalid")

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(session.ray, "init", init)

    with pytest.raises(EnvironmentNotFit, match="refused this machine's token"):
        connect(RuntimeSettings(address="auto"))


def record(stage: str, round_id: int, seconds: float, nbytes: int) -> RoundRecord:
    return RoundRecord(
        stage=stage,
        round=round_id,
        seconds=seconds,
        accuracy={"mean": round_id / 10},
        per_client=[0.5] * 1000,
        sent={"up": {"model": nbytes, "spectra": 1}, "down": {"model": 2 * nbytes}},
    )


def test_a_round_that_is_reported_again_counts_once():
    totals = Totals()
    for stage, round_id, seconds in (("group", 1, 1.0), ("train", 1, 2.0), ("train", 2, 4.0)):
        totals.add(record(stage, round_id, seconds, 10))

    totals.add(record("train", 1, 8.0, 100))  # back to the commit after the grouping

    assert len(totals) == 3
    assert totals.seconds == {"group": 1.0, "train": 12.0}
    assert totals.sent == {"up": 10 + 100 + 10 + 3, "down": 240}
    assert totals.accuracy == 0.1


def test_nothing_of_a_record_is_kept_but_numbers():
    totals = Totals()
    totals.add(record("train", 1, 1.0, 10))

    assert [tuple(kept) for kept in totals._rounds.values()] == [(1.0, 11, 20)]
