"""``raysim doctor``: is this machine fit, and what to do where it is not."""

from __future__ import annotations

import importlib
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from raysim.cli.tables import print_table
from raysim.errors import ConfigError, RaysimError
from raysim.storage.files import json_text

SMALLEST_FREE_BYTES = 2 * 10**9


@dataclass(frozen=True)
class Finding:
    """One line of the report; ``ok`` None is information, False makes the exit code 3."""

    what: str
    ok: bool | None
    says: str


@click.command("doctor")
@click.option("--cluster", is_flag=True, help="Check every node of a Ray cluster instead.")
@click.option(
    "--address",
    metavar="auto|HOST:PORT|URL",
    help="With --cluster: the cluster to join (default auto), or its dashboard's URL.",
)
@click.option("--storage", metavar="PATH|URL", help="With --cluster: must be shared by every node.")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as one JSON object.")
def command(cluster: bool, address: str | None, storage: str | None, as_json: bool) -> None:
    """Check packages, Ray, devices, disk and data, and say what to do."""
    if not cluster and (address is not None or storage is not None):
        raise ConfigError("--address and --storage are about a cluster; add --cluster")
    if cluster:
        from raysim.cli.doctor_cluster import cluster_findings

        findings = cluster_findings(address, storage)
    else:
        findings = []
        for check in (_packages, _processor, _gpus, _disk, _cache, _data, _ray, _fingerprint):
            try:
                findings += check()
            except Exception as wrong:  # a check that breaks is a finding, not a crash
                name = check.__name__.strip("_")
                findings.append(Finding(name, False, f"{type(wrong).__name__}: {wrong}"))
    fit = all(f.ok is not False for f in findings)
    if as_json:
        rows = [{"what": f.what, "ok": f.ok, "says": f.says} for f in findings]
        click.echo(json_text({"fit": fit, "findings": rows}))
    else:
        marks = {True: "ok", False: "FAIL", None: "info"}
        print_table((), [(marks[f.ok], f.what, f.says) for f in findings], left=3, wrap=True)
        what = "cluster" if cluster else "machine"
        click.echo(f"this {what} is fit" if fit else "not fit: see the lines marked FAIL")
    if not fit:
        raise click.exceptions.Exit(3)


def _packages() -> list[Finding]:
    from raysim.runs.environment import describe_environment

    found: dict[str, Any] = describe_environment()
    missing = [name for name, version in found["packages"].items() if version is None]
    text = ", ".join(f"{name} {version}" for name, version in found["packages"].items() if version)
    findings = [Finding("packages", not missing, f"python {found['python']}, {text}")]
    if missing:
        says = f"missing: {', '.join(missing)}; pip install raysim"
        findings.append(Finding("packages", False, says))
    return findings


def _processor() -> list[Finding]:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    room = f"room for about {max(int(memory * 0.7 / 200e6), 1)} torch actors"
    return [
        Finding("machine", None, f"{os.cpu_count()} CPUs, {memory / 1e9:.0f} GB memory, {room}")
    ]


def _gpus() -> list[Finding]:
    torch = importlib.import_module("torch")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not count:
        return [Finding("gpu", None, "none; spectra run on NumPy, training on the CPU")]
    try:
        works = bool(importlib.import_module("cupy").is_available())
    except ImportError:
        works = False
    do = "missing; pip install 'raysim[gpu-cuda12]' or 'raysim[gpu-cuda13]' for CuPy"
    return [Finding("gpu", None, f"{count} CUDA devices, CuPy {'works' if works else do}")]


def _disk() -> list[Finding]:
    from raysim.data.store import cache_root

    folder = next(f for f in (cache_root(), *cache_root().parents) if f.exists())
    free = shutil.disk_usage(folder).free
    is_enough = free >= SMALLEST_FREE_BYTES
    do = "" if is_enough else "; free some or set RAYSIM_CACHE to another disk"
    return [Finding("disk", is_enough, f"{free / 1e9:.0f} GB free for the cache{do}")]


def _cache() -> list[Finding]:
    from raysim.data.store import cache_root

    folder = cache_root()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return [Finding("cache", True, str(folder))]
    except OSError as wrong:
        do = "set RAYSIM_CACHE to a writable folder"
        return [Finding("cache", False, f"{folder}: {wrong}; {do}")]


def _data() -> list[Finding]:
    from raysim.data.datasets import DATASETS, data_root

    root = data_root(None)
    present = [name for name in DATASETS.names() if _is_present(DATASETS.get(name)())]
    says = f"{root}: {', '.join(present) or 'no real dataset yet'} (digits and synthetic need none)"
    return [Finding("data", None, says + "; `raysim data fetch NAME` brings one")]


def _is_present(dataset: Any) -> bool:
    try:
        sources: list[Path] = dataset.sources(None)
    except RaysimError:
        return False
    return bool(sources) and all(path.exists() for path in sources)


def _ray() -> list[Finding]:
    from raysim.runtime.ray.connection import probe

    return [Finding("ray", True, probe())]


def _fingerprint() -> list[Finding]:
    from raysim.runtime.numerics import numeric_fingerprint

    says = f"fingerprint {numeric_fingerprint()} (equal on every node of a cluster)"
    return [Finding("numerics", None, says)]
