"""One YAML file, ``key=value`` overrides, and nothing misspelled.

Text in, a checked ``RunConfig`` out.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import TypeAdapter, ValidationError

from raysim.data.world import DataSettings
from raysim.errors import ConfigError
from raysim.methods import METHODS
from raysim.models.training import TrainSettings
from raysim.models.zoo import MODELS, Model
from raysim.protocols import Method
from raysim.runtime.checkpoint import CheckpointSettings
from raysim.runtime.placement import RuntimeSettings
from raysim.settings import Registry, SettingError, check, choice, did_you_mean, settings
from raysim.steps.arrays import Arrays
from raysim.steps.evaluation import EvaluateSettings
from raysim.steps.merging import ServerSettings

_MISSING = object()


@settings
class RunConfig:
    """Everything that decides a run.

    ``runtime``, ``checkpoint`` and ``output`` do not change its bits.
    """

    name: str = "run"
    seed: int = 0
    data: DataSettings = DataSettings()
    model: Model = choice(MODELS, "logistic")
    train: TrainSettings = TrainSettings()
    server: ServerSettings = ServerSettings()
    evaluate: EvaluateSettings = EvaluateSettings()
    method: Method = choice(METHODS, "fb_nll")
    arrays: Arrays = "auto"
    """Library of the spectra: auto is CuPy where a GPU is, else NumPy.

    Results agree to rounding.
    """
    runtime: RuntimeSettings = RuntimeSettings()
    checkpoint: CheckpointSettings = CheckpointSettings()
    output: str = "runs/{name}/{method}/seed{seed}"
    """Run directory; {name}, {method}, {dataset} and {seed} are filled in."""

    def __post_init__(self) -> None:
        check(self.seed >= 0, "seed", "must not be negative", got=self.seed)
        plain = self.name and all(c.isalnum() or c in "._-" for c in self.name)
        check(
            bool(plain) and not self.name.startswith("."),
            "name",
            "must be letters, digits, '.', '_' or '-'",
            got=self.name,
        )
        try:
            self.run_dir()
        except (KeyError, IndexError, ValueError) as wrong:
            fields = "{name}, {method}, {dataset}, {seed}"
            raise SettingError("output", f"may only use {fields}", self.output) from wrong

    def run_dir(self) -> Path:
        """Return the run directory with the placeholders filled in."""
        return Path(
            self.output.format(
                name=self.name,
                method=choice_name(self.method),
                dataset=choice_name(self.data.dataset),
                seed=self.seed,
            )
        )


def choice_name(chosen: object) -> str:
    """Return the registered name of a chosen settings object."""
    return str(type(chosen).choice_name)  # type: ignore[attr-defined]


def load_config(source: str | Path | Mapping[str, Any], overrides: Sequence[str] = ()) -> RunConfig:
    """Return the checked config of a YAML file or mapping, with ``key=value`` overrides."""
    raw = dict(source) if isinstance(source, Mapping) else _read(Path(source))
    for text in overrides:
        _override(raw, text)
    return _build(RunConfig, raw, "")


def dump_config(config: RunConfig) -> dict[str, Any]:
    """Return the complete config as plain values; loading it again gives an equal config."""
    return _dump(config)


def config_yaml(config: RunConfig) -> str:
    """Return the complete config as YAML text."""
    return yaml.safe_dump(dump_config(config), sort_keys=False, allow_unicode=True, width=100)


def changed_keys(ours: RunConfig, theirs: RunConfig, ignore: Sequence[str] = ()) -> list[str]:
    """Return the paths whose values differ, leaving out sections in ``ignore``."""
    a, b = _flat(dump_config(ours)), _flat(dump_config(theirs))
    keys = sorted(k for k in a.keys() | b.keys() if a.get(k, _MISSING) != b.get(k, _MISSING))
    return [k for k in keys if k.split(".")[0] not in ignore]


# ---- reading -------------------------------------------------------------------------------


class _Loader(yaml.SafeLoader):
    """Safe YAML that refuses a key given twice instead of keeping the last one."""


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[str, Any]:
    seen: dict[str, Any] = {}
    for key_node, value_node in node.value:
        key = loader.construct_object(key_node)
        if key in seen:
            line = key_node.start_mark.line + 1
            raise ConfigError(f"line {line}: {key!r} is given twice; keep one of them")
        seen[key] = loader.construct_object(value_node, deep=True)
    return seen


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def _read(path: Path, seen: tuple[Path, ...] = ()) -> dict[str, Any]:
    path = _find(path)
    if path.resolve() in seen:
        raise ConfigError(f"{path}: base refers back to itself; remove one of the base lines")
    try:
        raw = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)
    except (yaml.YAMLError, UnicodeDecodeError) as wrong:
        raise ConfigError(f"{path} is not readable YAML: {wrong}") from wrong
    except ConfigError as wrong:
        raise ConfigError(f"{path}: {wrong}") from wrong
    if raw is None:
        raw = {}
    if not isinstance(raw, dict):
        raise ConfigError(f"{path} must hold settings (key: value), got {type(raw).__name__}")
    base = raw.pop("base", None)
    if base is None:
        return raw
    under = _read(path.parent / str(base), (*seen, path.resolve()))
    return _merge(under, raw, top=True)


def _find(path: Path) -> Path:
    """Return the file, or the bundled config of that name."""
    if path.is_file():
        return path
    known = {p.relative_to(bundled_configs()).with_suffix("").as_posix(): p for p in config_files()}
    name = path.with_suffix("").as_posix() if path.suffix in (".yaml", ".yml") else path.as_posix()
    if name in known:
        return known[name]
    hint = did_you_mean(name, list(known))
    raise ConfigError(
        f"config {str(path)!r} is neither a file nor a bundled config{hint}; "
        "`raysim ls configs` lists the bundled ones"
    )


def bundled_configs() -> Path:
    """Return the folder of the configs that come with raysim."""
    package = Path(__file__).resolve().parent
    inside = package / "configs"
    return inside if inside.is_dir() else package.parent / "configs"


def config_files() -> list[Path]:
    """Every bundled config, sorted."""
    return sorted(bundled_configs().rglob("*.yaml"))


def _merge(under: Mapping[str, Any], over: Mapping[str, Any], top: bool = False) -> dict[str, Any]:
    """Lay ``over`` on ``under``; a section that chooses another kind replaces the whole section."""
    if not top and any(k in over and over[k] != under.get(k) for k in ("kind", "name")):
        return dict(over)
    merged = dict(under)
    for key, value in over.items():
        old = merged.get(key)
        both = isinstance(old, Mapping) and isinstance(value, Mapping)
        merged[key] = _merge(old, value) if both else value  # type: ignore[arg-type]
    return merged


def _override(raw: dict[str, Any], text: str) -> None:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"override {text!r} is not of the form key=value, e.g. train.lr=0.1")
    *sections, last = key.strip().split(".")
    node = raw
    for section in sections:
        inner = node.get(section)
        if isinstance(inner, str):  # shorthand of a choice: dataset: synthetic
            inner = {"=": inner}
        node[section] = dict(inner) if isinstance(inner, Mapping) else {}
        node = node[section]
    try:
        parsed = yaml.load(value, Loader=_Loader)
    except yaml.YAMLError as wrong:
        raise ConfigError(f"override {key}: {value!r} is not readable YAML: {wrong}") from wrong
    if last in ("kind", "name") and sections:
        node.pop("=", None)
    node[last] = parsed


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
    values = {
        name: _value(fields[name], hints[name], value, _join(path, name))
        for name, value in raw.items()
    }
    try:
        return cls(**values)
    except SettingError as wrong:
        raise _at(path, wrong) from wrong


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
    name = section.get(registry.key, section.get("="))
    if not isinstance(name, str):
        names = ", ".join(registry.names())
        raise ConfigError(f"{path}.{registry.key} must be one of {names}; got {name!r}")
    try:
        cls = registry.get(name)
    except ConfigError as wrong:
        raise ConfigError(f"{path}: {wrong}") from None
    rest = {k: v for k, v in section.items() if k not in (registry.key, "=")}
    return _build(cls, rest, path, what=f"{registry.what} {name}")


def _leaf(hint: Any, value: object, path: str) -> Any:
    try:
        return TypeAdapter(hint).validate_python(value)
    except ValidationError as wrong:
        rule = wrong.errors()[0]["msg"].replace("Input should be", "must be")
        options = [a for a in typing.get_args(hint) if isinstance(a, str)]
        if typing.get_origin(hint) is not Literal:
            options = []
        raise ConfigError(
            f"{path} {rule}, got {value!r}{did_you_mean(str(value), options)}"
        ) from None


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


def _flat(plain: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in plain.items():
        where = _join(path, key)
        flat.update(_flat(value, where) if isinstance(value, Mapping) else {where: value})
    return flat


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key
