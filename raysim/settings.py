"""How settings are written.

Frozen dataclasses beside the code they configure, checked when they are made: numbers by the
interval that their annotation declares, ``rate: Annotated[float, In("[0, 1)")] = 0.2``, and what an
interval cannot say by ``check`` in ``__post_init__``.

A *choice* is a setting that picks one of several registered classes by name (``kind`` or ``name``
in the YAML);
the chosen class holds its own settings and does the work. ``raysim.config`` turns YAML into these
objects.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import importlib.metadata
import inspect
import math
import pkgutil
import sys
import typing
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Generic, Literal, TypeVar, dataclass_transform

from raysim.errors import ConfigError

PLUGINS = "raysim.plugins"
"""Group of entry points by which installed packages name modules with choices of their own."""
T = TypeVar("T")
C = TypeVar("C", bound=type)


class SettingError(ConfigError):
    """A field has a value that is not allowed; the loader adds the path of the section."""

    def __init__(self, field: str, rule: str, got: object, do: str = "") -> None:
        self.field, self.rule, self.got, self.do = field, rule, got, do
        super().__init__(f"{field} {rule}, got {got!r}" + (f"; {do}" if do else ""))

    def __reduce__(self) -> tuple[type[SettingError], tuple[object, ...]]:
        """Rebuild from the fields."""
        return type(self), (self.field, self.rule, self.got, self.do)


def check(ok: bool, field: str, rule: str, *, got: object, do: str = "") -> None:
    """Raise a ``SettingError`` for ``field`` unless ``ok``."""
    if not ok:
        raise SettingError(field, rule, got, do)


@dataclasses.dataclass(frozen=True)
class In:
    """The values that a number may have: ``Annotated[float, In("[0, 1)")]``."""

    interval: str
    """As in mathematics: a square bracket includes the end; the upper one may be ``inf)``."""
    do: str = ""
    """What the message advises."""

    def check(self, field: str, value: Any, *, or_null: bool) -> None:
        """Raise a ``SettingError`` for a value outside."""
        low, high = (float(end) for end in self.interval[1:-1].split(","))
        above = value > low if self.interval[0] == "(" else value >= low
        below = value < high if self.interval[-1] == ")" else value <= high
        rule = f"must be in {self.interval}"
        if high == math.inf:
            rule = f"must be {'above' if self.interval[0] == '(' else 'at least'} {low:g}"
            if not math.isfinite(value):
                rule += " and finite"
            elif self.interval == "[0, inf)":
                rule = "must not be negative"
        rule += ", or null" if or_null else ""
        check(above and below, field, rule, got=value, do=self.do)


@dataclass_transform(frozen_default=True, kw_only_default=True)
def settings(cls: type[T]) -> type[T]:
    """Make ``cls`` a settings class: a frozen, keyword-only, slotted dataclass that is checked."""
    own = cls.__dict__.get("__post_init__")
    rules = _declared(cls, sys._getframe(1).f_locals)

    def __post_init__(self: Any) -> None:
        for name, (rule, or_null) in self._intervals.items():
            value = getattr(self, name)
            if not (value is None and or_null):
                rule.check(name, value, or_null=or_null)
        if own is not None:
            own(self)

    if own is not None or not hasattr(cls, "__post_init__"):
        cls.__post_init__ = __post_init__  # type: ignore[attr-defined]
    made = dataclasses.dataclass(frozen=True, kw_only=True, slots=True)(cls)
    made._intervals = rules  # type: ignore[attr-defined]
    return made


def _declared(cls: type[Any], names: Mapping[str, Any]) -> dict[str, tuple[In, bool]]:
    """Return the interval of every field that declares one, and whether it may be null.

    ``names`` are those known where the class is written.
    """
    rules: dict[str, tuple[In, bool]] = dict(getattr(cls, "_intervals", {}))  # of its bases
    for field, hint in inspect.get_annotations(cls).items():
        rules.pop(field, None)  # a subclass may declare a field anew
        if isinstance(hint, str):
            try:
                hint = eval(hint, {**vars(sys.modules[cls.__module__]), **names})
            except (NameError, TypeError, AttributeError):
                continue  # a type that is known to type checkers only, or not yet
        members = typing.get_args(hint)  # of a union, or an Annotated and its metadata
        for part in (hint, *members):
            for rule in getattr(part, "__metadata__", ()):
                if isinstance(rule, In):
                    inner = typing.get_args(part.__origin__)
                    rules[field] = rule, type(None) in (*members, *inner)
    return rules


class Registry(Generic[T]):
    """Names of the classes a setting may choose from.

    The modules that hold them are imported on first use.
    """

    def __init__(
        self, what: str, *, key: str, home: str, other_names: Mapping[str, str] | None = None
    ) -> None:
        self.what, self.key, self._home = what, key, home
        self._other_names = other_names or {}
        """Names known from elsewhere, in small letters alone, and what stands for them here."""
        self._classes: dict[str, type[T]] = {}
        self._loaded = False

    def register(self, name: str) -> Callable[[C], C]:
        """Class decorator: make the class available as ``name``."""

        def add(cls: C) -> C:
            known = self._classes.get(name)
            if known is not None and _origin(known) != _origin(cls):
                raise ConfigError(
                    f"{self.what} {name!r} is registered twice: by {'.'.join(_origin(known))} and "
                    f"by {'.'.join(_origin(cls))}; give one of them another name"
                )
            self._classes[name] = cls
            cls.choice_name = name  # type: ignore[attr-defined]
            return cls

        return add

    def names(self) -> list[str]:
        """Every registered name, sorted."""
        self._load()
        return sorted(self._classes)

    def get(self, name: str) -> type[T]:
        """Return the class called ``name``; a wrong name is an error with a suggestion."""
        self._load()
        if name not in self._classes:
            ours = self._other_names.get(name.lower().replace("_", "").replace("-", ""))
            hint = f"; here it is {ours}" if ours else did_you_mean(name, self.names())
            raise ConfigError(
                f"unknown {self.what} {name!r}{hint}; one of: {', '.join(self.names())}"
            )
        return self._classes[name]

    def _load(self) -> None:
        if self._loaded:
            return
        home = importlib.import_module(self._home)
        for module in pkgutil.iter_modules(getattr(home, "__path__", [])):
            importlib.import_module(f"{self._home}.{module.name}")
        self._loaded = True
        _load_installed()


@cache
def _load_installed() -> None:
    """Import what installed packages offer."""
    for found in importlib.metadata.entry_points(group=PLUGINS):
        try:
            found.load()
        except Exception as wrong:
            package = found.dist.name if found.dist is not None else "unknown"
            raise ConfigError(
                f"plugin {found.name!r} ({found.value}) of the installed package {package} cannot "
                f"be imported ({type(wrong).__name__}: {wrong}); update or uninstall it"
            ) from wrong


def _origin(cls: type[Any]) -> tuple[str, str]:
    return cls.__module__, cls.__qualname__


def choice(registry: Registry[Any], default: str | None) -> Any:
    """Return a dataclass field that holds an instance of one of the registry's classes or None."""
    make = (lambda: None) if default is None else (lambda: registry.get(default)())
    return dataclasses.field(default_factory=make, metadata={"registry": registry})


def did_you_mean(word: str, known: list[str]) -> str:
    """Return "; did you mean x?" for the closest known word, or nothing."""
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f"; did you mean {close[0]}?" if close else ""


# ---- settings that several rooms read -----------------------------------------------------

SMALLEST_SHARE = 0.0001
"""Ray counts resources in ten-thousandths."""


@settings
class ShareSettings:
    """What one client actor is pinned to."""

    cpus: float = 1.0
    gpus: float | Literal["auto"] = 0.0

    def __post_init__(self) -> None:
        gpus = 0.0 if self.gpus == "auto" else self.gpus
        for name, value in (("cpus", self.cpus), ("gpus", gpus)):
            check(math.isfinite(value), name, "must be finite", got=value)
            check(value >= 0, name, "must not be negative", got=value)
            fine = math.isclose(value, round(value, 4), rel_tol=0, abs_tol=1e-9)
            check(fine, name, f"cannot be finer than {SMALLEST_SHARE}", got=value)
        whole = gpus <= 1 or float(gpus).is_integer()
        check(whole, "gpus", "above 1 must be a whole number of GPUs", got=self.gpus)
        check(self.cpus >= 0.001, "cpus", "must be at least 0.001", got=self.cpus)


@settings
class RuntimeSettings:
    """Where the clients live. Only a deadline changes a result, since it depends on the clock."""

    kind: Literal["auto", "local", "ray"] = "auto"
    address: str | None = None
    """Ray cluster to join ("auto" or host:port); null: RAY_ADDRESS, else one on this machine."""
    actors: int | str = "auto"
    """Client actors: a number, auto, per_client (one each) or a range like 2..8.

    auto: as many as the resources hold, at most one per client. A range starts with what is there.
    auto and a range grow when nodes join."""
    per_actor: ShareSettings = ShareSettings()
    servers: int | Literal["auto"] = "auto"
    """Parameter servers; group m lives on server m mod servers.

    auto: one per group, near its clients, up to four a worker node; one where there is one node or
    every client is a group."""
    autoscale: int | None = None
    """Client actors that the cluster's autoscaler can make room for; null: what is there counts."""
    max_restarts: int = 3
    """How often one actor may be rebuilt between two commits before the run gives up."""
    queue_timeout_s: float = 3600.0
    """How long to wait for resources that other runs hold, or that the autoscaler brings."""
    start_timeout_s: float = 60.0
    """How long to wait for the next actor to start, once all have their resources."""
    dashboard: bool = False
    """Whether Ray's dashboard starts with a cluster on this machine; its address is printed."""
    round_deadline_s: float | None = None
    """After this time a round of training goes on without slow actors; null: wait for all.

    Who is late depends on the machine, so that such a run cannot be repeated bit by bit. Refused
    without actors, and for methods whose clients keep something from their training."""
    quorum: float = 1.0
    """Share of a round's clients that must have answered before slow ones are left behind."""

    def __post_init__(self) -> None:
        fewest, most = self.limits(1)
        rule = "must be auto, per_client, a range like 2..8 or at least 1"
        check(1 <= fewest <= most, "actors", rule, got=self.actors)
        for name in ("servers", "autoscale"):
            value = getattr(self, name)
            check(value in ("auto", None) or value >= 1, name, "must be at least 1", got=value)
        check(self.max_restarts >= 0, "max_restarts", "must not be negative", got=self.max_restarts)
        for name in ("start_timeout_s", "queue_timeout_s"):
            value = getattr(self, name)
            check(value > 0, name, "must be positive", got=value)
        check(0 < self.quorum <= 1, "quorum", "must be in (0, 1]", got=self.quorum)
        deadline = self.round_deadline_s
        if deadline is not None:
            check(deadline > 0, "round_deadline_s", "must be positive", got=deadline)
            check(
                self.quorum < 1,
                "quorum",
                "must be below 1 with round_deadline_s, else nobody can be left behind",
                got=self.quorum,
                do="lower it, or drop round_deadline_s",
            )
        check(
            deadline is not None or self.quorum == 1,
            "quorum",
            "below 1 needs round_deadline_s: how long to wait for the others",
            got=self.quorum,
            do="set round_deadline_s",
        )
        remote = self.address is None or self.kind != "local"
        check(remote, "address", "has no meaning with kind: local", got=self.address, do="drop it")

    def limits(self, clients: int) -> tuple[int, int]:
        """Return how many client actors there must and may be; (0, 0) for what is no number."""
        if self.actors == "auto":
            return 1, clients
        if self.actors == "per_client":
            return clients, clients
        fewest, dots, most = str(self.actors).partition("..")
        if not fewest.isdecimal() or (dots and not most.isdecimal()):
            return 0, 0
        return int(fewest), int(most or fewest)

    def check_deadline(self, method: str, stateless: bool | None) -> None:
        """Refuse a deadline that nothing would come of.

        ``stateless``: whether clients keep nothing from their training; None where a method does
        not say, then the first task that is waited for is refused.
        """
        deadline = f"runtime.round_deadline_s is {self.round_deadline_s}"
        if self.round_deadline_s is not None and self.kind == "local":
            raise ConfigError(
                f"{deadline}, but runtime.kind is local: one process waits for all its clients; "
                "set runtime.kind to ray or auto, or drop runtime.round_deadline_s and "
                "runtime.quorum"
            )
        if self.round_deadline_s is not None and stateless is False:
            raise ConfigError(
                f"{deadline}, but clients of {method} keep something from their training, so that "
                "no round can go on without one of them; drop runtime.round_deadline_s and "
                "runtime.quorum, or choose a method like single"
            )
