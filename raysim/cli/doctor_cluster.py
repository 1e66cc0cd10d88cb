"""What ``raysim doctor --cluster`` makes of the nodes' answers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from raysim.cli.doctor import SMALLEST_FREE_BYTES, Finding
from raysim.errors import EnvironmentNotFit

if TYPE_CHECKING:
    from raysim.runtime.ray.inspection import NodeReport

LARGEST_SKEW_S = 1.0


def cluster_findings(address: str | None, storage: str | None) -> list[Finding]:
    """Ask the nodes: as a driver on one of them, or through the dashboard's URL as a job."""
    from raysim.runtime.ray.connection import is_url
    from raysim.storage.objects import refuse_secrets

    if storage is not None:
        refuse_secrets(storage, "--storage")  # before anything repeats it
    address = address or "auto"
    if is_url(address):
        return _through_job(address, storage)

    from raysim.runtime.ray.inspection import describe_node, inspect_cluster, unreachable_storage

    findings = judge(inspect_cluster(address), describe_node())
    if storage is not None:
        findings += judge_storage(storage, unreachable_storage(storage))
    return findings


def judge(reports: Sequence[NodeReport], mine: dict[str, Any]) -> list[Finding]:
    """Turn reports into lines; ``mine`` is what this process says about itself."""
    answered = [report for report in reports if not report.wrong]
    findings = [_node(report) for report in reports]
    findings += _versions(answered, mine)
    findings += _numerics(answered, mine)
    return findings + _clocks(answered)


def _node(report: NodeReport) -> Finding:
    node, facts = report.node, report.facts
    name = _name(report)
    if report.wrong:
        return Finding("node", False, f"{name}: no answer ({report.wrong}); look at it, or end it")
    devices, free = facts["cuda_devices"], facts["free_bytes"]
    says = f"{name}: {node.cpus:g} CPUs, {node.gpus:g} GPUs"
    if node.gpus or devices:
        says += f" (CUDA finds {devices}, CuPy {'works' if facts['cupy'] else 'does not work'})"
    if not isinstance(devices, int) or devices < node.gpus:
        do = "check the driver and CUDA_VISIBLE_DEVICES, or start it with --num-gpus"
        return Finding("node", False, f"{says}; fewer than Ray promises: {do}")
    if not isinstance(free, int):
        return Finding("node", False, f"{says}; its disk cannot be asked: {free}")
    says += f", {free / 1e9:.0f} GB free for the cache"
    if free < SMALLEST_FREE_BYTES:
        do = "free some or set RAYSIM_CACHE to another disk"
        return Finding("node", False, f"{says}; {do}")
    return Finding("node", True, says)


def _versions(reports: Sequence[NodeReport], mine: dict[str, Any]) -> list[Finding]:
    wrong = []
    for report in reports:
        theirs = report.facts["versions"]
        others = [
            f"{name} {theirs.get(name) or 'missing'} (here {version})"
            for name, version in mine["versions"].items()
            if theirs.get(name) != version
        ]
        if others:
            do = "install the same versions on every node (tools/constraints.txt)"
            wrong.append(f"{_name(report)}: {', '.join(others)}; {do}")
    same = ", ".join(f"{name} {version}" for name, version in mine["versions"].items())
    return _verdict("versions", wrong, f"{same} on {len(reports)} node(s)")


def _numerics(reports: Sequence[NodeReport], mine: dict[str, Any]) -> list[Finding]:
    here = mine["fingerprint"]
    wrong = [
        f"{_name(report)}: fingerprint {theirs}, here {here}: other processors or libraries, so "
        "runs there end in other last bits; use nodes of one kind where bits matter"
        for report in reports
        if (theirs := report.facts["fingerprint"]) != here
    ]
    good = f"fingerprint {here} on {len(reports)} node(s): expect equal bits"
    return _verdict("numerics", wrong, good)


def _clocks(reports: Sequence[NodeReport]) -> list[Finding]:
    wrong = [
        f"{_name(report)}: {report.skew_s:+.2f} s against this process; set it by NTP (chrony, "
        "systemd-timesyncd)"
        for report in reports
        if abs(report.skew_s) - report.round_trip_s / 2 > LARGEST_SKEW_S
    ]
    largest = max((abs(report.skew_s) for report in reports), default=0.0)
    return _verdict("clock", wrong, f"largest skew {largest:.3f} s")


def judge_storage(storage: str, wrong: Sequence[tuple[str, str]]) -> list[Finding]:
    """Turn what is wrong with a storage, by node, into lines."""
    do = "mount or open the same storage on every node"
    found = [f"{name}: {storage}: {why}; {do}" for name, why in wrong]
    good = f"{storage}: what each node writes the driver reads, and back"
    return _verdict("storage", found, good)


def _verdict(what: str, wrong: Sequence[str], good: str) -> list[Finding]:
    """Return a finding for each thing that is wrong, or the one that all is good."""
    return [Finding(what, False, says) for says in wrong] or [Finding(what, True, good)]


def _name(report: NodeReport) -> str:
    """Address and the first letters of the id: several nodes may share an address."""
    return f"{report.node.name} ({report.node.id[:6]})"


def _through_job(address: str, storage: str | None) -> list[Finding]:
    """Have the cluster examine itself, with this raysim."""
    import shlex

    from raysim.runtime.ray.jobs import DOCTOR, Jobs, new_job_id

    jobs = Jobs(address)
    job_id = new_job_id("doctor")
    line = "python -m raysim doctor --cluster --address auto --json"
    if storage is not None:
        line += f" --storage {shlex.quote(storage)}"
    jobs.submit(line, {}, job_id=job_id, kind=DOCTOR, run_dir="")
    said = "".join(jobs.follow(job_id)).splitlines()
    answers = [text for text in said if text.startswith('{"fit"')]
    if not answers:
        end = " ".join(said[-1:])
        raise EnvironmentNotFit(f"the cluster's own doctor (job {job_id}) failed: {end}")
    return [Finding(**row) for row in json.loads(answers[-1])["findings"]]
