"""What is asked of the dispatch and what it answers. No proof and no graph is needed to use these."""

from __future__ import annotations

from dataclasses import dataclass

from qgen.dispatch.space import Value


@dataclass(frozen=True)
class Request:
    """One request. T tokens, N rows (output features), K columns (input features); names as in specs/requests.toml."""

    op: str
    format: str
    activation: str
    T: int
    N: int
    K: int
    arch: str
    storage: str = "native"
    epilogue: str = "none"
    policy: str = "fastest"
    contiguous: bool = True

    def values(self) -> dict[str, Value]:
        """The request by axis."""
        values = dict(self.__dict__)
        values["contiguous"] = "yes" if self.contiguous else "no"
        return values


@dataclass(frozen=True)
class Decision:
    """Exactly one of kernel and code is set.

    kernel:    name of the kernel (its entry symbol), file the stem of the file it is in
    contract:  name of the kernel's arithmetic contract; None for ops that have none
    quantiser: the kernel that makes its activation; None where it takes x as it is
    code:      of a refusal: what is missing, one word; reason says the same to people
    """

    kernel: str | None = None
    file: str | None = None
    contract: str | None = None
    quantiser: str | None = None
    code: str | None = None
    reason: str = ""

    @property
    def served(self) -> bool:
        return self.kernel is not None
