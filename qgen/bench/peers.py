"""Other people's kernels: figures measured earlier, from specs/peers, put beside those of this run."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qgen import paths
from qgen.bench.protocol import Timing
from qgen.errors import QgenError

_TOP = {"device", "protocol", "provenance", "peers", "named"}
_PEER = {"name", "version", "how", "tokens", "us", "formats"}
_NAMED = {"format", "peer", "row", "factors"}


@dataclass(frozen=True)
class Figure:
    """A peer's time beside which a row of this run stands, in microseconds.

    row:     the peer's own name of what it ran
    factors: where the comparison is a promise: this run may take at most factor * us
    live:    the passes, where it was measured in the same run
    """

    peer: str
    row: str
    us: float
    provenance: str
    factors: tuple[float, ...] = ()
    live: Timing | None = None


@dataclass(frozen=True)
class _Row:
    peer: str
    row: str
    formats: tuple[str, ...]
    shape: str
    us: Mapping[int, float]


@dataclass(frozen=True)
class Peers:
    """The figures of one file. `device`: the name of the device they hold for."""

    device: str
    protocol: str
    provenance: str
    versions: Mapping[str, str]
    rows: tuple[_Row, ...]
    named: Mapping[str, tuple[str, str, tuple[float, ...]]]

    def beside(self, format: str, shape: str, tokens: int) -> tuple[Figure, ...]:
        """The figures for a format, a shape ("14336x4096") and a token count, in file order."""
        found = []
        peer, row, factors = self.named.get(format, ("", "", ()))
        for r in self.rows:
            promised = (r.peer, r.row) == (peer, row)
            if r.shape == shape and tokens in r.us and (format in r.formats or promised):
                found.append(Figure(r.peer, r.row, r.us[tokens], self.provenance, factors if promised else ()))
        return tuple(found)


def load(path: Path | None = None) -> Peers:
    """Read a file of peers' figures (specs/peers/h200.toml). Raises QgenError when it is missing or wrong."""
    path = path or paths.data_dir("specs") / "peers" / "h200.toml"
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise _wrong(path, "the file", str(error), "readable TOML") from error
    _keys(path, "top level", data, _TOP)
    rows: list[_Row] = []
    versions: dict[str, str] = {}
    for peer in data["peers"]:
        _keys(path, "peers", peer, _PEER, optional={"formats"})
        versions[peer["name"]] = f"{peer['version']}: {peer['how']}"
        for shape, table in peer["us"].items():
            for name, times in table.items():
                if len(times) != len(peer["tokens"]):
                    counts = f"{len(times)} times for {len(peer['tokens'])} token counts"
                    raise _wrong(path, f"{peer['name']}, {shape}, {name}", counts, "one time a token count")
                formats = tuple(peer.get("formats", {}).get(name, [name]))
                by_tokens = dict(zip(peer["tokens"], map(float, times), strict=True))
                rows.append(_Row(peer["name"], name, formats, shape, by_tokens))
    named = {}
    for entry in data["named"]:
        _keys(path, "named", entry, _NAMED)
        if entry["peer"] not in versions:
            raise _wrong(path, "named", f"peer {entry['peer']!r}", ", ".join(versions))
        named[entry["format"]] = (entry["peer"], entry["row"], tuple(map(float, entry["factors"])))
    return Peers(data["device"], data["protocol"], data["provenance"], versions, tuple(rows), named)


def _keys(path: Path, where: str, table: Mapping[str, Any], known: set[str], optional: set[str] | None = None) -> None:
    unlike = (set(table) - known) | (known - (optional or set()) - set(table))
    if unlike:
        raise _wrong(path, where, f"keys unknown or missing: {', '.join(sorted(unlike))}", ", ".join(sorted(known)))


def _wrong(path: Path, where: str, found: str, allowed: str) -> QgenError:
    return QgenError(
        stage="bench", subject=f"{path}: {where}", found=found, allowed=allowed, next="mend the file of peers' figures"
    )
