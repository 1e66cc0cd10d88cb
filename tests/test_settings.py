"""Settings classes, checks and registries."""

from __future__ import annotations

import dataclasses
import math
import pickle
import sys
import types
from typing import Annotated

import pytest

from raysim.config import load_config
from raysim.data.noise import NOISE
from raysim.errors import ConfigError
from raysim.methods import METHODS
from raysim.settings import In, Registry, SettingError, check, choice, did_you_mean, settings


@settings
class Point:
    """A settings class of this test."""

    x: int = 1
    y: int = 2

    def __post_init__(self) -> None:
        check(self.x >= 0, "x", "must not be negative", got=self.x, do="use its size")


@settings
class Shares:
    """Numbers with declared intervals."""

    rate: Annotated[float, In("[0, 1)", do="try 0.2")] = 0.2
    rounds: Annotated[int | None, In("[1, inf)")] = None
    step: Annotated[float, In("(0, inf)")] = 0.1
    pull: Annotated[float, In("[0, inf)")] = 0.0


@settings
class MoreShares(Shares):
    """A subclass that declares one field anew and checks something of its own."""

    rate: Annotated[float, In("[0, 1]")] = 1.0

    def __post_init__(self) -> None:
        check(self.rate != self.pull, "pull", "must not be the rate", got=self.pull)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"rate": 1.0}, "rate must be in [0, 1), got 1.0; try 0.2"),
        ({"rate": -0.1}, "rate must be in [0, 1), got -0.1; try 0.2"),
        ({"rate": math.nan}, "rate must be in [0, 1), got nan; try 0.2"),
        ({"rounds": 0}, "rounds must be at least 1, or null, got 0"),
        ({"step": 0}, "step must be above 0, got 0"),
        ({"step": math.inf}, "step must be above 0 and finite, got inf"),
        ({"pull": math.inf}, "pull must be at least 0 and finite, got inf"),
        ({"pull": -1}, "pull must not be negative, got -1"),
    ],
)
def test_a_declared_interval_is_checked_when_settings_are_made(values, message):
    with pytest.raises(SettingError) as caught:
        Shares(**values)

    assert str(caught.value) == message
    with pytest.raises(SettingError):
        dataclasses.replace(Shares(), **values)


def test_the_ends_of_a_declared_interval_and_null_are_allowed():
    assert Shares(rate=0, rounds=None, step=1e-9, pull=0).rounds is None
    assert Shares(rounds=1).rounds == 1


def test_a_subclass_keeps_declared_intervals_and_adds_checks_of_its_own():
    assert MoreShares().rate == 1.0
    with pytest.raises(SettingError, match="pull must not be the rate"):
        MoreShares(pull=1.0)
    with pytest.raises(SettingError, match=r"rate must be in \[0, 1\]"):
        MoreShares(rate=2)
    with pytest.raises(SettingError, match="rounds must be at least 1"):
        MoreShares(rounds=0)


Rate = Annotated[float, In("[0, 1]")]


@settings
class Aliased:
    """Intervals behind a name of their own, and inside a union."""

    rate: Rate = 0.5
    other: Rate | None = None


def test_an_interval_behind_a_name_or_in_a_union_is_checked():
    assert Aliased(other=None).other is None
    with pytest.raises(SettingError, match="rate must be in"):
        Aliased(rate=7.0)
    with pytest.raises(SettingError, match=r"other must be in .*, or null"):
        Aliased(other=7.0)


def test_an_interval_of_a_class_in_a_function_is_checked():
    from raysim.settings import In as Interval

    @settings
    class Inner:
        rate: Annotated[float, Interval("[0, 1]")] = 0.5

    with pytest.raises(SettingError, match="rate must be in"):
        Inner(rate=7.0)


def empty_registry(home: str = "raysim.seeding") -> Registry:
    return Registry("shape", key="kind", home=home)


def test_settings_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Point().x = 3


def test_settings_take_keywords_only():
    with pytest.raises(TypeError):
        Point(3)


def test_settings_have_no_room_for_other_attributes():
    with pytest.raises((AttributeError, TypeError)):
        object.__setattr__(Point(), "z", 1)


def test_equal_settings_are_equal_and_hash_alike():
    assert Point(x=3) == Point(x=3) != Point(x=4)
    assert hash(Point(x=3)) == hash(Point(x=3))


def test_a_check_that_holds_says_nothing():
    check(True, "x", "must be there", got=None)


def test_a_failed_check_says_what_got_and_do():
    with pytest.raises(SettingError) as caught:
        Point(x=-1)

    assert str(caught.value) == "x must not be negative, got -1; use its size"


def test_a_failed_check_without_advice_ends_with_what_was_got():
    with pytest.raises(SettingError, match=r"^y must be odd, got '4'$"):
        check(False, "y", "must be odd", got="4")


def test_a_failed_check_keeps_its_parts_when_pickled():
    wrong = SettingError("x", "must be small", 10**9, "lower it")

    again = pickle.loads(pickle.dumps(wrong))

    assert (again.field, again.rule, again.got, again.do) == (
        "x",
        "must be small",
        10**9,
        "lower it",
    )
    assert str(again) == str(wrong)
    assert isinstance(again, ConfigError)


def test_a_registered_class_is_found_and_knows_its_name():
    registry = empty_registry()
    registry.register("point")(Point)

    assert registry.get("point") is Point
    assert Point.choice_name == "point"


def test_names_are_sorted():
    registry = empty_registry()
    for name in ("square", "circle", "line"):
        registry.register(name)(type(name, (), {}))

    assert registry.names() == ["circle", "line", "square"]


def test_an_unknown_name_is_an_error_with_a_suggestion_and_the_list():
    registry = empty_registry()
    registry.register("circle")(type("Circle", (), {}))
    registry.register("square")(type("Square", (), {}))

    with pytest.raises(ConfigError) as caught:
        registry.get("cirle")

    said = "unknown shape 'cirle'; did you mean circle?; one of: circle, square"
    assert str(caught.value) == said


@pytest.mark.parametrize(
    ("override", "hint"),
    [
        ("method=fedavg", "unknown method 'fedavg'; here it is single; one of: "),
        ("data.noise=mixed", "unknown noise model 'mixed'; here it is ramp with flips mixed; one"),
    ],
)
def test_a_name_from_elsewhere_is_told_ours(override, hint):
    with pytest.raises(ConfigError) as caught:
        load_config("quickstart", [override])

    assert hint in str(caught.value)


@pytest.mark.parametrize("registry", [METHODS, NOISE])
def test_what_stands_for_names_from_elsewhere_is_there(registry):
    for other, ours in registry._other_names.items():
        assert other not in registry.names()
        assert ours.split()[0] in registry.names()


def test_two_classes_cannot_share_a_name():
    registry = empty_registry()
    registry.register("circle")(type("Circle", (), {}))

    with pytest.raises(ConfigError, match="shape 'circle' is registered twice"):
        registry.register("circle")(type("Other", (), {}))


def test_two_modules_cannot_share_a_name_either():
    registry = empty_registry()
    registry.register("circle")(type("Circle", (), {"__module__": "one"}))

    with pytest.raises(ConfigError, match="registered twice"):
        registry.register("circle")(type("Circle", (), {"__module__": "two"}))


def test_a_module_that_is_loaded_again_may_register_again():
    registry = empty_registry()
    registry.register("circle")(type("Circle", (), {"__module__": "one"}))
    again = type("Circle", (), {"__module__": "one"})

    registry.register("circle")(again)

    assert registry.get("circle") is again


def test_the_home_of_a_registry_is_imported_on_first_use(monkeypatch):
    registry = empty_registry("raysim_test_shapes")
    monkeypatch.setitem(sys.modules, "raysim_test_shapes", types.ModuleType("raysim_test_shapes"))

    assert registry.names() == []
    monkeypatch.delitem(sys.modules, "raysim_test_shapes")
    assert registry.names() == []  # a second import would fail now


def test_a_choice_defaults_to_a_fresh_instance_of_the_named_class():
    registry = empty_registry()
    registry.register("point")(Point)

    @settings
    class Drawing:
        shape: object = choice(registry, "point")
        frame: object = choice(registry, None)

    assert Drawing().shape == Point()
    assert Drawing().frame is None


@pytest.mark.parametrize(
    ("word", "hint"),
    [("rte", "; did you mean rate?"), ("rates", "; did you mean rate?"), ("zzz", "")],
)
def test_only_a_close_word_is_suggested(word, hint):
    assert did_you_mean(word, ["rate", "kind"]) == hint


def test_nothing_is_suggested_from_nothing():
    assert did_you_mean("rate", []) == ""
