"""What the domain says when it will not do a thing."""

from dataclasses import dataclass
from enum import StrEnum


class Reason(StrEnum):
    """Stable, machine-readable causes; API problems and conditions carry them."""

    INVALID_TARGET = "InvalidTarget"
    INVALID_ALIAS = "InvalidAlias"
    RESERVED = "Reserved"
    TAKEN = "Taken"
    SAME_OWNER = "SameOwner"
    INVALID_TIME = "InvalidTime"
    EXPIRY_IN_PAST = "ExpiryInPast"
    PERMANENT_EXPIRES = "PermanentExpires"
    INVALID_LABELS = "InvalidLabels"
    INVALID_POLICY = "InvalidPolicy"
    CODE_CHANGED = "CodeChanged"
    UNKNOWN = "Unknown"
    NOT_OWNER = "NotOwner"
    MANAGED = "ManagedByObject"
    TOMBSTONED = "Tombstoned"
    GRACE_OVER = "GraceOver"
    NOT_TOMBSTONED = "NotTombstoned"
    NOT_DUE = "NotDue"


@dataclass(frozen=True, slots=True)
class Refusal:
    """A refusal: why, in words that say what was wrong, where, and what to do next.

    `field` names the input at fault in the caller's own terms (`target`, `alias`,
    `expires_at`, ...), or is empty when the state of the link is at fault. `suggestion` is an
    alias that was free a moment ago, where another was taken.
    """

    reason: Reason
    message: str
    field: str = ""
    suggestion: str = ""


class Refused(Exception):
    """Carries a `Refusal` out through code that returns something else."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal
