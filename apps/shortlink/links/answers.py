"""What a visitor of a code is answered (R1, R2), as a pure function of the link and the time."""

from dataclasses import dataclass

from shortlink.links.model import LIVE, Cause, Link, State


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP status with, for redirects, the target; else the reason that people are told."""

    status: int
    target: str = ""
    reason: str = ""


UNKNOWN = Answer(404, reason="This short link does not exist.")
EXPIRED = Answer(410, reason="This short link has expired.")
DELETED = Answer(410, reason="This short link was deleted by its owner.")
DISABLED = Answer(451, reason="This short link was disabled because of how it was used.")


def answer(link: Link | None, now: int) -> Answer:
    """The answer for `link` at `now`; it depends on no sweeper having run.

    A code that was freed answers as its last tombstone did, until it is issued again.
    """
    if link is None:
        return UNKNOWN
    if link.state not in LIVE:
        return EXPIRED if link.cause is Cause.EXPIRED else DELETED
    if link.expires_at is not None and now >= link.expires_at:
        return EXPIRED
    if link.state is State.DISABLED:
        return DISABLED
    return Answer(301 if link.permanent and link.expires_at is None else 302, link.target)
