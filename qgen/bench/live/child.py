"""A peer's own process: python -m qgen.bench.live.child NAME ARGUMENT, JSON lines in and out.

It says what it is, or why it cannot run, and then answers {"do": "cell", ...}, {"do": "lap", "id": n}, {"do": "drop"}.
What it cannot do it answers with {"skip": reason}.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

from qgen.bench.live.cell import Cell, Peer, Ready, Unavailable
from qgen.bench.live.ggml_peer import Ggml
from qgen.bench.live.humming_peer import Humming
from qgen.bench.live.torch_peer import Torch

PEERS: dict[str, Callable[[str], Peer]] = {"ggml": Ggml, "humming": Humming, "torch": Torch}


class Service:
    """The answers of one peer."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.ready: list[Ready] = []

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """One answer to one request; an error of the library is a reason to skip, whatever it raises."""
        try:
            if request["do"] == "drop":
                self.ready.clear()
                self.peer.drop()
                return {}
            if request["do"] == "lap":
                return {"us": self.ready[request["id"]].lap()}
            cell = Cell.of(request["format"], request["shape"], request["tokens"], request["cold"])
            made = self.peer.ready(cell)
        except Unavailable as reason:
            return {"skip": str(reason)}
        except Exception as cause:
            return {"skip": f"{type(cause).__name__}: {cause}".splitlines()[0]}
        if not made.error <= self.peer.tolerance:
            return {
                "skip": f"its result is wrong: normalised mean square error {made.error:.2g}, "
                f"{self.peer.tolerance:.2g} is allowed"
            }
        self.ready.append(made)
        return {"id": len(self.ready) - 1, "row": made.row, "error": made.error}


def main(name: str, argument: str) -> None:
    """Serve until the requests end."""
    # Libraries print to stdout; answers go where they cannot.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def say(answer: dict[str, Any]) -> None:
        answers.write(json.dumps(answer) + "\n")

    try:
        peer = PEERS[name](argument)
    except Unavailable as reason:
        say({"skip": str(reason)})
        return
    except Exception as cause:
        say({"skip": f"{type(cause).__name__}: {cause}".splitlines()[0]})
        return
    say({"version": peer.version, "how": peer.how, "tolerance": peer.tolerance})
    service = Service(peer)
    for line in sys.stdin:
        say(service.answer(json.loads(line)))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
