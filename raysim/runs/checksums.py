"""``checksums.json``: sha256 of the files of a run directory, compared whenever one is read.

A file's new digest is written down before the file is replaced, beside the old one, so that whoever
reads a run that goes on finds one of the two; records grow, so theirs covers the first bytes. A run
without this file, and files that it does not name, are unverified.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from raysim.storage.objects import Storage

CHECKSUMS, RECORDS = "checksums.json", "rounds.jsonl"
TRIES, PAUSE_S = 3, 0.2
"""How often to read again what a living run may have replaced between two readings."""
Entries = dict[str, dict[str, Any]]
"""Name of a file -> its ``sha256``, one or several, and how many ``bytes`` they cover."""


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def read_checked(storage: Storage, name: str) -> tuple[bytes, str]:
    """Return a file's content and what is wrong with it, if anything is."""
    for attempt in range(TRIES):
        if attempt:
            time.sleep(PAUSE_S)
        lost = None
        try:
            content = storage.read(name)
        except FileNotFoundError:
            with contextlib.suppress(ValueError):
                lost = stored(storage).get(name, {}).get("bytes")
            if not lost:
                raise
            content = b""
        try:
            wrong = difference(stored(storage).get(name), content)
        except ValueError:
            wrong = f"{CHECKSUMS} is damaged; without that file it is read unverified"
        if not wrong:
            break
    return content, wrong


def stored(storage: Storage) -> Entries:
    """Return the entries of a run directory; none where there is no file of them."""
    try:
        plain = json.loads(storage.read(CHECKSUMS))
    except FileNotFoundError:
        return {}
    except ValueError as wrong:
        raise ValueError(f"{CHECKSUMS} is damaged") from wrong
    entries = plain.get("sha256") if isinstance(plain, dict) else None
    if not isinstance(entries, dict) or not all(map(_is_entry, entries.values())):
        raise ValueError(f"{CHECKSUMS} is damaged")
    return entries


def _is_entry(value: object) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("bytes", 0), int):
        return False
    digests = value.get("sha256")
    return isinstance(digests, list) and all(isinstance(digest, str) for digest in digests)


def difference(entry: Mapping[str, Any] | None, content: bytes) -> str:
    """Return how a content differs from its entry; nothing where it does not."""
    if entry is None:
        return ""
    size = entry.get("bytes", len(content))
    if len(content) < size:
        return f"it has {len(content)} bytes, the run wrote {size}"
    if sha256(content[:size]) not in entry["sha256"]:
        return f"its sha256 is not that in {CHECKSUMS}"
    return ""


@dataclass
class Checksums:
    """The entries of a run directory, in the hands of the process that writes it."""

    storage: Storage
    entries: Entries = field(default_factory=dict)
    written: set[str] = field(default_factory=set)
    """Files that are there; a process that was killed may have announced others."""
    _records: Any = field(default_factory=hashlib.sha256)
    _size: int = 0

    def __post_init__(self) -> None:
        self.written |= {name for name in self.entries if self.storage.exists(name)}

    @contextlib.contextmanager
    def replacing(self, digests: Mapping[str, str]) -> Iterator[None]:
        """Write the new digests down; what is replaced in the block has only those afterwards."""
        before = {name: self.entries.get(name, {}).get("sha256", []) for name in digests}
        self.entries |= {
            name: {"sha256": list(dict.fromkeys([*before[name], digest]))}
            for name, digest in digests.items()
        }
        self.write()
        yield
        self.entries |= {name: {"sha256": [digest]} for name, digest in digests.items()}
        self.written |= digests.keys()

    def begin_records(self, content: bytes) -> None:
        """Take ``content`` for all records there are."""
        self._records, self._size = hashlib.sha256(), 0
        self.add_records(content)

    def add_records(self, line: bytes) -> None:
        self._records.update(line)
        self._size += len(line)
        self.written.add(RECORDS)
        self.entries[RECORDS] = {"sha256": [self._records.hexdigest()], "bytes": self._size}

    def write(self) -> None:
        self.storage.write(CHECKSUMS, json.dumps({"sha256": self.entries}, indent=1).encode())
