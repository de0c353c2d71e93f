"""The one exception family: a failure a user can meet says where, what, what was allowed, and what to do next."""

from __future__ import annotations


class QgenError(Exception):
    """A failure with its stage, object, value found, what was allowed, and the next command.

    stage:   the room of the flow that refused ("spec", "gguf", "build", "run", ...)
    subject: the object at fault (a file, a key, a tensor, a kernel)
    found:   the value met, with the arithmetic that failed where there is one
    allowed: what would have been accepted
    next:    what the user can do or run now
    """

    def __init__(self, *, stage: str, subject: str, found: str, allowed: str, next: str) -> None:
        super().__init__(stage, subject, found, allowed, next)
        self.stage = stage
        self.subject = subject
        self.found = found
        self.allowed = allowed
        self.next = next

    def __str__(self) -> str:
        return (
            f"{self.stage}: {self.subject}\n  found:   {self.found}\n  allowed: {self.allowed}\n  next:    {self.next}"
        )

    def __reduce__(self) -> tuple[object, tuple[str, str, str, str, str]]:
        # Keyword-only arguments do not survive the default pickling that process pools rely on.
        return (_rebuild, (self.stage, self.subject, self.found, self.allowed, self.next))


def _rebuild(stage: str, subject: str, found: str, allowed: str, next: str) -> QgenError:
    return QgenError(stage=stage, subject=subject, found=found, allowed=allowed, next=next)
