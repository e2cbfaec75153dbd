"""The mass-deletion brake: many deletions at once wait for a person (T2).

Pure, and one for both sources of objects, the API server and a folder of manifests.
"""

from collections.abc import Iterable

from shortlink.links.lifecycle import settled
from shortlink.links.model import LIVE, Cause, Link
from shortlink.links.policy import Policy


def tally(links: Iterable[Link], policy: Policy, now: int) -> tuple[int, int]:
    """How many of a namespace's links live, and how many were deleted within the brake's window."""
    live = recent = 0
    for link in links:
        live += settled(link, policy, now).state in LIVE
        recent += (
            link.cause is Cause.DELETED
            and link.tombstoned_at is not None
            and link.tombstoned_at > now - policy.brake_window
        )
    return live, recent


def held(namespace: str, going: int, live: int, recent: int, policy: Policy) -> str:
    """Why `going` deletions have to wait, or nothing.

    `live` links the namespace has, those that are to go among them; `recent` ones went within the
    window.
    """
    gone, all_ = going + recent, live + recent
    if gone > policy.brake_links and gone > policy.brake_share * all_:
        return (
            f"{gone} of {all_} links of namespace {namespace} would go within"
            f" {policy.brake_window // 1000} s"
        )
    return ""
