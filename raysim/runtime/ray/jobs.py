"""raysim's jobs on a cluster, through the one authenticated port of Ray's Jobs API.

The token is Ray's own business: Ray finds it (``RAY_AUTH_TOKEN``, ``RAY_AUTH_TOKEN_PATH`` or
``~/.ray/auth_token``) and puts it into the requests. raysim neither reads nor hands it on.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import requests
from ray.exceptions import AuthenticationError
from ray.job_submission import JobStatus, JobSubmissionClient

import raysim
from raysim.errors import ConfigError, DataError, EnvironmentNotFit
from raysim.runtime.ray.connection import is_url, token_advice

DEFAULT_ADDRESS = "http://127.0.0.1:8265"
ADDRESSES = ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS")
KNOCK_S, ANSWER_S, REQUEST_S = 5.0, 10.0, 120.0
"""How long a connection, the first answer, and any later answer may take."""
QUIET_S = 60.0
"""A log that says nothing for so long is opened anew: the connection may be dead."""
RETRY_S = 300.0
"""How long a cluster that does not answer is asked again before following it is given up."""
STOP_S = 600
"""Seconds a stopped job has to finish its round and commit before Ray kills it; Ray's own: 3."""
LONGEST_NAME = 40
Content = str | bytes
RUN, FETCH, DOCTOR = "run", "fetch", "doctor"
GONE_WRONG = (aiohttp.ClientError, requests.RequestException, OSError, RuntimeError, ValueError)
"""What Ray's client raises when the cluster does not answer as it should."""


@dataclass(frozen=True)
class Job:
    """What the cluster says about a job of raysim."""

    id: str
    kind: str
    status: str
    has_ended: bool
    exit_code: int | None
    """What the command would return: the run's own code; 130 stopped, 1 or 3 never got to run."""
    started: float | None
    run_dir: str
    version: str
    message: str


def find_address(given: str | None) -> str:
    """Return the URL to ask: the given one, Ray's variables, or this machine's dashboard.

    ``RAY_ADDRESS`` may as well name a cluster to join, which is no URL and says nothing here.
    """
    source, address = "--address", given
    if address is None:
        named = [(name, os.environ.get(name, "")) for name in ADDRESSES]
        usable = ((n, a) for n, a in named if a and (n != "RAY_ADDRESS" or is_url(a)))
        source, address = next(usable, ("", DEFAULT_ADDRESS))
    if address == "auto":
        address = DEFAULT_ADDRESS
    try:
        parts = urlsplit(address)
        good = parts.scheme in ("http", "https") and bool(parts.hostname)
        good = good and parts.port != 0 and parts.path in ("", "/") and not parts.query
    except ValueError:
        good = False
    if not good:
        raise ConfigError(
            f"{source} must be the URL of the cluster's dashboard, like {DEFAULT_ADDRESS}; "
            f"got {address!r}"
        )
    if parts.username or parts.password:
        raise ConfigError(f"{source} must not hold a password; Ray's token authentication does it")
    return address.rstrip("/")


def new_job_id(name: str) -> str:
    """Return a name fit for a job, with a random end: no two are the same."""
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower())[:LONGEST_NAME].strip("-")
    return f"{plain or 'run'}-{secrets.token_hex(4)}"


def is_job_id(text: str) -> bool:
    """Whether a text can be a job's name; it becomes a part of a URL."""
    return re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}", text, re.ASCII) is not None


class _Client(JobSubmissionClient):  # type: ignore[misc]
    """Ray's client, but one that does not wait for ever."""

    patience = (KNOCK_S, ANSWER_S)

    def _do_request(self, method: str, endpoint: str, **options: Any) -> Any:
        options.setdefault("timeout", self.patience)
        return super()._do_request(method, endpoint, **options)


class Jobs:
    """The jobs of one cluster."""

    def __init__(self, address: str | None) -> None:
        """Knock; refuse within seconds where no cluster answers or the token is not right."""
        self.address = find_address(address)
        with self._readable(), _only_address(self.address):
            self._client = _Client(self.address)
        self._client.patience = (KNOCK_S, REQUEST_S)

    def submit(
        self,
        entrypoint: str,
        files: Mapping[str, Content],
        *,
        job_id: str,
        kind: str,
        run_dir: str,
        driver_cpus: float | None = None,
        driver_memory_gb: float | None = None,
    ) -> None:
        """Start a job with this raysim and ``files`` as its working folder.

        Ray starts it on the head, or on a node with what is kept for its driver.
        """
        with packed(files) as folder, self._readable():
            self._client.submit_job(
                entrypoint=f"exec {entrypoint}",  # no shell between Ray's signal and the run
                submission_id=job_id,
                runtime_env={
                    "working_dir": str(folder),
                    "env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": str(STOP_S)},
                },
                metadata={
                    "raysim": raysim.__version__,
                    "raysim_kind": kind,
                    "raysim_run_dir": run_dir,
                },
                entrypoint_num_cpus=driver_cpus or None,
                entrypoint_memory=int(driver_memory_gb * 1e9) if driver_memory_gb else None,
            )

    def all(self) -> list[Job]:
        """Return raysim's jobs, the newest first."""
        with self._readable():
            found = self._client.list_jobs()
        jobs = [_job(d) for d in found if "raysim" in (d.metadata or {}) and d.submission_id]
        return sorted(jobs, key=lambda job: job.started or 0.0, reverse=True)

    def get(self, job_id: str) -> Job:
        """Return one job of the cluster."""
        if not is_job_id(job_id):
            raise ConfigError(f"{job_id!r} cannot be a job; `raysim status` lists them")
        with self._readable(job_id):
            return _job(self._client.get_job_info(job_id))

    def log(self, job_id: str) -> str:
        """Return what a job has said so far."""
        with self._readable(job_id):
            return str(self._client.get_job_logs(job_id))

    def stop(self, job_id: str) -> bool:
        """Ask a job to end after its round; False: it had ended."""
        with self._readable(job_id):
            return bool(self._client.stop_job(job_id))

    def follow(self, job_id: str) -> Iterator[str]:
        """Yield the log from its start, as it grows, until the job has ended.

        A broken connection is opened again; what was yielded does not come twice.
        """
        seen, broken_since, is_silent = 0, None, False
        while True:
            skip = seen
            try:
                for text in self._tail(job_id):
                    broken_since, is_silent = None, text is None
                    new = (text or "")[skip:]
                    skip = max(skip - len(text or ""), 0)
                    seen += len(new)
                    if new:
                        yield new
                if self.get(job_id).has_ended:
                    if is_silent and (rest := self.log(job_id)[seen:]):
                        yield rest  # said between the silence and the end
                    return
                broken_since = None
            except (EnvironmentNotFit, *GONE_WRONG) as wrong:
                broken_since = broken_since or time.monotonic()
                if time.monotonic() - broken_since > RETRY_S:
                    raise EnvironmentNotFit(
                        f"the cluster at {self.address} has not answered for {RETRY_S:.0f} s "
                        f"({_first_line(wrong)}); the job may go on: "
                        f"`raysim status {job_id} --follow` looks again"
                    ) from wrong
                time.sleep(1.0)

    def wait(self, job_id: str) -> Job:
        """Return a job once it has ended; its log should have been followed before."""
        while not (job := self.get(job_id)).has_ended:
            time.sleep(0.5)
        return job

    def _tail(self, job_id: str) -> Iterator[str | None]:
        """Yield pieces of the log until the cluster ends it; None: it says nothing for a while."""
        with asyncio.Runner() as runner:
            pieces = self._client.tail_job_logs(job_id)
            while True:
                try:
                    yield runner.run(asyncio.wait_for(anext(pieces), QUIET_S))
                except StopAsyncIteration:
                    return
                except TimeoutError:
                    yield None
                    return

    @contextlib.contextmanager
    def _readable(self, job_id: str = "") -> Iterator[None]:
        """Turn what Ray's client raises into one sentence with what to do."""
        try:
            yield
        except AuthenticationError as wrong:
            raise EnvironmentNotFit(token_advice(self.address, str(wrong))) from None
        except GONE_WRONG as wrong:
            if job_id and "does not exist" in str(wrong):
                raise DataError(
                    f"no job {job_id!r} on the cluster at {self.address}; `raysim status` lists "
                    "its jobs"
                ) from wrong
            raise EnvironmentNotFit(
                f"the cluster at {self.address} does not answer as one of Ray's "
                f"({_first_line(wrong)}); start it, forward its port (`ray dashboard`), or "
                "correct --address"
            ) from wrong


@contextlib.contextmanager
def packed(files: Mapping[str, Content]) -> Iterator[Path]:
    """Yield a folder with this raysim package, without leftovers, and ``files``."""
    here = Path(raysim.__file__).resolve().parent
    with tempfile.TemporaryDirectory(prefix="raysim-job-") as made:
        folder = Path(made)
        hidden = shutil.ignore_patterns("__pycache__", "*.pyc", ".*")
        shutil.copytree(here, folder / "raysim", ignore=hidden)
        for name, content in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
        yield folder


def _job(details: Any) -> Job:
    metadata: Mapping[str, str] = details.metadata or {}
    status = JobStatus(details.status)
    return Job(
        id=str(details.submission_id),
        kind=metadata.get("raysim_kind", ""),
        status=status.value.lower(),
        has_ended=status.is_terminal(),
        exit_code=_exit_code(status, details.driver_exit_code, details.error_type),
        started=details.start_time / 1000 if details.start_time else None,
        run_dir=metadata.get("raysim_run_dir", ""),
        version=metadata.get("raysim", ""),
        message=details.message or "",
    )


def _exit_code(status: JobStatus, code: int | None, error: str | None) -> int | None:
    if not status.is_terminal():
        return None
    if code is not None:
        return code if code >= 0 else 128 - code  # killed by a signal, as shells say it
    if status == JobStatus.STOPPED:
        return 130
    return 3 if "RUNTIME_ENV" in str(error or "") else 1


@contextlib.contextmanager
def _only_address(address: str) -> Iterator[None]:
    """Let the address that was found count: Ray prefers its variables to the argument."""
    before = os.environ.get(ADDRESSES[0])
    os.environ[ADDRESSES[0]] = address
    try:
        yield
    finally:
        if before is None:
            del os.environ[ADDRESSES[0]]
        else:
            os.environ[ADDRESSES[0]] = before


def _first_line(wrong: BaseException) -> str:
    return str(wrong).strip().partition("\n")[0][:300] or type(wrong).__name__
