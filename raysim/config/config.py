"""One YAML file, ``key=value`` overrides, and nothing misspelled.

Text in, a checked ``RunConfig`` out.
"""

from __future__ import annotations

import dataclasses
import math
import typing
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from string import Formatter
from typing import Any, Literal

import yaml
from pydantic import TypeAdapter, ValidationError

from raysim.config.bundled import find_config
from raysim.config.plugins import import_modules, module_names, refuse_unnamed
from raysim.data.world import DataSettings
from raysim.errors import ConfigError
from raysim.methods import METHODS
from raysim.models.forms import closed_form
from raysim.models.training import TrainSettings
from raysim.models.zoo import MODELS, Model
from raysim.protocols import MethodLike
from raysim.settings import (
    Registry,
    RuntimeSettings,
    SettingError,
    check,
    choice,
    did_you_mean,
    settings,
)
from raysim.steps.arrays import Arrays
from raysim.steps.correction import CorrectSettings
from raysim.steps.evaluation import EvaluateSettings
from raysim.steps.server import ServerSettings
from raysim.storage.checkpoint import CheckpointSettings
from raysim.storage.objects import Place, place, refuse_secrets

FREE_TO_CHANGE = ("runtime", "checkpoint", "output", "track")
"""Sections that do not touch a run's bits, so that --resume accepts other values."""
RUN_FILES = (
    *("environment.json", "rounds.jsonl", "result.json", "checksums.json", "events.jsonl"),
    *("checkpoint", "models/index.json"),
)
"""One of these beside a config.yaml makes the folder a run directory."""
_MISSING = object()


@settings
class RunConfig:
    """Everything that decides a run; the sections in ``FREE_TO_CHANGE`` do not change its bits."""

    name: str = "run"
    seed: int = 0
    imports: tuple[str, ...] = ()
    """Modules of your own with methods, datasets, ...: in the current folder, or installed."""
    data: DataSettings = DataSettings()
    model: Model = choice(MODELS, "logistic")
    train: TrainSettings = TrainSettings()
    server: ServerSettings = ServerSettings()
    evaluate: EvaluateSettings = EvaluateSettings()
    method: MethodLike = choice(METHODS, "fb_nll")
    correct: CorrectSettings = CorrectSettings()
    arrays: Arrays = "auto"
    """Library of the spectra: auto is CuPy where a GPU is, else NumPy.

    Results agree to rounding.
    """
    runtime: RuntimeSettings = RuntimeSettings()
    checkpoint: CheckpointSettings = CheckpointSettings()
    output: str = "runs/{name}/{method}/seed{seed}"
    """Run directory, a path or a URL; {name}, {method}, {dataset} and {seed} are filled in."""
    track: tuple[Literal["tensorboard", "mlflow"], ...] = ()
    """Who gets the numbers of every round, besides rounds.jsonl."""

    def __post_init__(self) -> None:
        check(self.seed >= 0, "seed", "must not be negative", got=self.seed)
        plain = self.name and all(c.isalnum() or c in "._-" for c in self.name)
        check(
            bool(plain) and not self.name.startswith("."),
            "name",
            "must be letters, digits, '.', '_' or '-'",
            got=self.name,
        )
        refuse_secrets(self.output)  # before anything repeats it
        fields = "{name}, {method}, {dataset}, {seed}"
        check(_is_template(self.output), "output", f"may only use {fields}", got=self.output)
        try:
            self.run_dir()
        except RuntimeError as wrong:  # ~somebody
            raise SettingError("output", "must begin in a home that exists", self.output) from wrong

    @property
    def method_label(self) -> str:
        """The method's name, and what is put in front of a stage of it."""
        name = choice_name(self.method)
        return name if self.correct.before is None else f"{name}+fb_nll"

    def resolved(self) -> RunConfig:
        """Return the config with ``train.kernel`` decided, so that the saved file repeats the bits.

        A config that is resolved stays as it is.
        """
        train = self.train
        has_form = closed_form(self.model, (28, 28, 1), 2) is not None
        has_form = has_form and train.augment == "none" and not train.mixup
        if train.kernel == "closed_form" and not has_form:
            raise ConfigError(
                f"train.kernel is closed_form, but model {choice_name(self.model)} with "
                f"train.augment {train.augment} and train.mixup {train.mixup:g} has none; use auto "
                "or autograd"
            )
        if train.kernel != "auto":
            return self
        kernel: Literal["closed_form", "autograd"] = "closed_form" if has_form else "autograd"
        return dataclasses.replace(self, train=dataclasses.replace(train, kernel=kernel))

    def run_dir(self) -> Place:
        """Return the run directory with the placeholders filled in."""
        return place(
            self.output.format(
                name=self.name,
                method=self.method_label,
                dataset=choice_name(self.data.dataset),
                seed=self.seed,
            )
        )


def _is_template(text: str) -> bool:
    """Whether the text is not empty and its placeholders are ours, without attributes."""
    example = {"name": "a", "method": "a", "dataset": "a", "seed": 0}
    try:
        names = {name for _, name, _, _ in Formatter().parse(text) if name is not None}
        return bool(text) and names <= example.keys() and bool(text.format(**example))
    except (LookupError, ValueError):  # {seed:{width}} looks up width
        return False


def choice_name(chosen: object) -> str:
    return str(type(chosen).choice_name)  # type: ignore[attr-defined]


def load_config(
    source: str | Path | Mapping[str, Any],
    overrides: Sequence[str] = (),
    *,
    imports: Sequence[str] = (),
) -> RunConfig:
    """Return the checked config of a YAML file or mapping, with ``key=value`` overrides.

    ``imports`` are added to the config's own; all are imported before the config is checked. Those
    of a run directory's config have to be named by the caller too.
    """
    changes = [_parse_override(text) for text in overrides]
    import_modules(module_names(dict(changes).get("imports"), imports))
    raw = dict(source) if isinstance(source, Mapping) else _read(Path(source))
    given: set[str] = set()
    for path, value in changes:
        _assign(raw, path, value, given)
        given.add(path)
    if raw.get("imports") or imports:
        raw["imports"] = module_names(raw.get("imports"), imports)
        import_modules(raw["imports"])
    return _build(RunConfig, raw, "")


def load_saved(plain: Mapping[str, Any], where: str) -> RunConfig:
    """Return the config of a run directory; ``where`` names it. Nothing is imported for it."""
    names = module_names(plain.get("imports"))
    try:
        return _build(RunConfig, {**plain, "imports": names}, "")
    except ConfigError:
        refuse_unnamed(names, where)
        raise


def dump_config(config: RunConfig) -> dict[str, Any]:
    """Return the complete config as plain values; loading it again gives an equal config."""
    return _dump(config)


def config_yaml(config: RunConfig) -> str:
    return yaml.safe_dump(dump_config(config), sort_keys=False, allow_unicode=True, width=100)


def changed_keys(
    ours: RunConfig, theirs: RunConfig, ignore: Sequence[str] = ()
) -> list[tuple[str, Any, Any]]:
    """Return (path, our value, their value) of what differs, without the sections in ``ignore``."""
    a, b = flat_values(dump_config(ours)), flat_values(dump_config(theirs))
    keys = sorted(k for k in a.keys() | b.keys() if a.get(k, _MISSING) != b.get(k, _MISSING))
    return [(k, a.get(k), b.get(k)) for k in keys if k.split(".")[0] not in ignore]


# ---- reading -------------------------------------------------------------------------------


class _Loader(yaml.SafeLoader):
    """Safe YAML that refuses a key given twice instead of keeping the last one."""


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[str, Any]:
    seen: dict[str, Any] = {}
    for key_node, value_node in node.value:
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, str):
            raise ConfigError(f"line {key_node.start_mark.line + 1}: {key!r} cannot be a key")
        if key in seen:
            line = key_node.start_mark.line + 1
            raise ConfigError(f"line {line}: {key!r} is given twice; keep one of them")
        seen[key] = loader.construct_object(value_node, deep=True)
    return seen


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def _read(path: Path, folder: Path = Path(), seen: tuple[Path, ...] = ()) -> dict[str, Any]:
    path = find_config(path, folder)
    if path.resolve() in seen:
        raise ConfigError(f"{path}: base refers back to itself; remove one of the base lines")
    try:
        raw = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)
    except ConfigError as wrong:
        raise ConfigError(f"{path}: {wrong}") from wrong
    except (yaml.YAMLError, ValueError, TypeError) as wrong:
        raise ConfigError(f"{path} is not readable YAML: {wrong}") from wrong
    if raw is None:
        raw = {}
    if not isinstance(raw, dict):
        raise ConfigError(f"{path} must hold settings (key: value), got {type(raw).__name__}")
    if _is_of_run(path) or _is_of_run(path.resolve()):
        refuse_unnamed(module_names(raw.get("imports")), str(path))
    base = raw.pop("base", None)
    if base is None:
        return raw
    under = _read(Path(str(base)), path.parent, (*seen, path.resolve()))
    return _merge(under, raw, "")


def _is_of_run(path: Path) -> bool:
    beside = (path.parent / name for name in RUN_FILES)
    return path.name == "config.yaml" and any(file.exists() for file in beside)


def _merge(under: Mapping[str, Any], over: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Lay ``over`` on ``under``; a section that chooses another kind replaces the whole section."""
    key = choice_keys().get(path)
    if key is not None and over.get(key, under.get(key)) != under.get(key):
        return dict(over)
    merged = dict(under)
    for name, value in over.items():
        old, where = merged.get(name), _join(path, name)
        if isinstance(old, str) and where in choice_keys():
            old = {choice_keys()[where]: old}
        both = isinstance(old, Mapping) and isinstance(value, Mapping)
        merged[name] = _merge(old, value, where) if both else value  # type: ignore[arg-type]
    return merged


@lru_cache(maxsize=1)
def choice_keys() -> dict[str, str]:
    """Return the path of every choice with the key that names it: data.noise -> kind."""
    found: dict[str, str] = {}

    def walk(cls: type[Any], path: str) -> None:
        hints = typing.get_type_hints(cls)
        for field in dataclasses.fields(cls):
            where = _join(path, field.name)
            if "registry" in field.metadata:
                found[where] = field.metadata["registry"].key
            elif dataclasses.is_dataclass(hints[field.name]):
                walk(hints[field.name], where)

    walk(RunConfig, "")
    return found


def _is_choice_key(path: str) -> bool:
    section, _, last = path.rpartition(".")
    return choice_keys().get(section) == last


def _parse_override(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"override {text!r} is not of the form key=value, e.g. train.lr=0.1")
    try:
        return key.strip(), yaml.load(value, Loader=_Loader)
    except ConfigError as wrong:
        raise ConfigError(f"override {key}: {wrong}") from wrong
    except (yaml.YAMLError, ValueError, TypeError) as wrong:
        raise ConfigError(f"override {key}: {value!r} is not readable YAML: {wrong}") from wrong


def _assign(raw: dict[str, Any], path: str, value: Any, given: set[str]) -> None:
    """Set one value; another name for a choice drops the old one's settings, not ``given`` ones."""
    *sections, last = path.split(".")
    node, where = raw, ""
    for section in sections:
        where = _join(where, section)
        inner = node.get(section)
        if isinstance(inner, str) and where in choice_keys():  # shorthand: dataset: synthetic
            inner = {choice_keys()[where]: inner}
        node[section] = dict(inner) if isinstance(inner, Mapping) else {}
        node = node[section]
    if _is_choice_key(path) and node.get(last) != value:
        for name in [n for n in node if _join(where, n) not in given]:
            del node[name]
    node[last] = value


# ---- building ------------------------------------------------------------------------------


def _build(cls: type[Any], raw: object, path: str, what: str = "") -> Any:
    raw = {} if raw is None else raw
    if not isinstance(raw, Mapping):
        raise ConfigError(f"{path} must be a section of settings, got {raw!r}")
    fields = {f.name: f for f in dataclasses.fields(cls)}
    hints = typing.get_type_hints(cls)
    for key, value in raw.items():
        if key not in fields:
            hint = did_you_mean(str(key), list(fields)) or "; remove it"
            known = ", ".join(fields) or "no settings of its own"
            raise ConfigError(
                f"{_join(path, str(key))} is not a setting{hint} "
                f"(got {value!r}; {what or path or 'a config'} knows: {known})"
            )
    for name, field in fields.items():
        needed = field.default is field.default_factory is dataclasses.MISSING
        if needed and name not in raw:
            raise ConfigError(f"{_join(path, name)} is missing; {what or path} needs it")
    values = {
        name: _value(fields[name], hints[name], value, _join(path, name))
        for name, value in raw.items()
    }
    try:
        made = cls(**values)
    except SettingError as wrong:
        raise _at(path, wrong) from wrong
    for name, value in values.items():  # after the checks of its own, which know a remedy
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"{_join(path, name)} must be a finite number, got {value!r}")
    return made


def _at(path: str, wrong: SettingError) -> ConfigError:
    return SettingError(_join(path, wrong.field), wrong.rule, wrong.got, wrong.do)


def _value(field: dataclasses.Field[Any], hint: Any, value: object, path: str) -> Any:
    registry = field.metadata.get("registry")
    if registry is not None:
        return _choose(registry, value, path, optional=type(None) in typing.get_args(hint))
    if dataclasses.is_dataclass(hint):
        return _build(typing.cast("type[Any]", hint), value, path)
    return _leaf(hint, value, path)


def _choose(registry: Registry[Any], value: object, path: str, *, optional: bool) -> Any:
    if value is None and optional:
        return None
    section = {registry.key: value} if isinstance(value, str) else value
    if not isinstance(section, Mapping):
        raise ConfigError(f"{path} must name a {registry.what}, got {value!r}")
    name = section.get(registry.key)
    if not isinstance(name, str):
        names = ", ".join(registry.names())
        raise ConfigError(f"{path}.{registry.key} must be one of {names}; got {name!r}")
    try:
        cls = registry.get(name)
    except ConfigError as wrong:
        raise ConfigError(f"{path}: {wrong}; your own ones need --import MODULE") from None
    rest = {k: v for k, v in section.items() if k != registry.key}
    return _build(cls, rest, path, what=f"{registry.what} {name}")


def _leaf(hint: Any, value: object, path: str) -> Any:
    words = [word for word in _words(hint) if isinstance(word, str)]
    try:
        if isinstance(value, bool) and bool not in (hint, *typing.get_args(hint)):
            kinds = "a word" if words else "a number"
            raise ConfigError(f"{path} must be {kinds}, got {value!r}; yes and no are not")
        return TypeAdapter(hint).validate_python(value)
    except ValidationError as wrong:
        rules = [error["msg"].removeprefix("Input should be ") for error in wrong.errors()]
        rule = " or ".join(dict.fromkeys(rules))
        must = "" if rule.startswith(("Value", "Assertion")) else "must be "
        hint_text = did_you_mean(str(value), words)
        raise ConfigError(f"{path} {must}{rule}, got {value!r}{hint_text}") from None


def _words(hint: Any) -> list[Any]:
    """Every word a Literal inside the hint allows."""
    if typing.get_origin(hint) is Literal:
        return list(typing.get_args(hint))
    return [word for inner in typing.get_args(hint) for word in _words(inner)]


def _dump(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: f for f in dataclasses.fields(value)}
        plain = {}
        for name, field in fields.items():
            inner = getattr(value, name)
            plain[name] = _dump(inner)
            registry = field.metadata.get("registry")
            if registry is not None and inner is not None:
                plain[name] = {registry.key: choice_name(inner), **plain[name]}
        return plain
    if isinstance(value, tuple | list):
        return [_dump(item) for item in value]
    return value


def flat_values(plain: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Return the values of a dumped config by their paths: train.lr -> 0.1."""
    flat: dict[str, Any] = {}
    for key, value in plain.items():
        where = _join(path, key)
        flat.update(flat_values(value, where) if isinstance(value, Mapping) else {where: value})
    return flat


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key
