"""Instants as people write them (RFC 3339) and as the domain counts them (milliseconds)."""

import re
from datetime import UTC, datetime, timedelta

from shortlink.links.refusal import Reason, Refusal

_RFC3339 = re.compile(
    r"\d{4}-\d{2}-\d{2}[Tt]([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,9})?"
    r"([Zz]|[+-]([01]\d|2[0-3]):[0-5]\d)",
    re.ASCII,
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


def parse_instant(text: str, field: str = "expires_at") -> int | Refusal:
    """Milliseconds since the epoch, from an RFC 3339 date-time with an offset (5.6).

    Leap seconds are refused: most clocks never show them. Digits past the millisecond are cut.
    """
    if not _RFC3339.fullmatch(text):
        return Refusal(
            Reason.INVALID_TIME,
            f"{field} {text[:40]!r} is not an RFC 3339 time with an offset;"
            " write it as 2027-01-31T12:00:00Z or 2027-01-31T12:00:00+05:30",
            field,
        )
    seconds, _, rest = text.partition(".")
    fraction = re.match(r"\d*", rest).group() if rest else ""  # type: ignore[union-attr]
    if fraction:
        text = f"{seconds}.{fraction[:6].ljust(6, '0')}{rest[len(fraction) :]}"
    try:
        # To UTC first: an offset may carry the instant past the years that can be written.
        return (datetime.fromisoformat(text.upper()).astimezone(UTC) - _EPOCH) // _MILLISECOND
    except (ValueError, OverflowError) as error:
        return Refusal(
            Reason.INVALID_TIME, f"{field} {text[:40]!r} is no real time: {error}", field
        )


def format_instant(at: int) -> str:
    """RFC 3339 in UTC; milliseconds appear only when there are any.

    Raises OverflowError for instants outside the years 1 to 9999.
    """
    text = (_EPOCH + at * _MILLISECOND).isoformat(
        timespec="milliseconds" if at % 1000 else "seconds"
    )
    return text.replace("+00:00", "Z")
