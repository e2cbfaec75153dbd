"""Custom aliases (G7), and the labels that owners put on links."""

import re
from collections.abc import Iterator, Sequence

from shortlink.links.refusal import Reason, Refusal

RESERVED = frozenset(
    """
    about abuse account admin api app apple assets auth billing blog console dashboard debug
    docs download edge favicon health healthz help home index internal link links livez login
    logout manage metrics null oauth operator owner pages ping policy privacy readyz redirect
    register reserved robots root security settings shortlink signin signup sitemap static stats
    status support system terms test undefined user users version webhook wellknown www
    """.split()
)
"""Words that the platform's own routes and files use or may use; compared without case."""

_PROFANE = re.compile(
    "fuck|shit|cunt|nigg(?:er|a)|faggot|wank|bollock|whore|slut|bitch|twat|motherf|arsehole"
    "|asshole|cocksuck|jizz|dildo|kike(?:s|$)|retard(?:s|ed|$)"
)
_LEET = str.maketrans("013457", "oieast")
_ALIAS = re.compile(r"[0-9A-Za-z]{3,20}", re.ASCII)

MAX_LABELS = 20
MAX_LABEL = 64
MAX_VALUE = 256


def is_code(text: str) -> bool:
    """Whether `text` has the form of a code or alias; nothing else is ever looked up."""
    return _ALIAS.fullmatch(text) is not None


def is_reserved(code: str) -> bool:
    """Whether nobody may hold `code`, written in any case: a route, or a rude word."""
    folded = code.lower()
    return (
        folded in RESERVED
        or _PROFANE.search(folded) is not None
        or _PROFANE.search(folded.translate(_LEET)) is not None
    )


def check_alias(alias: str) -> Refusal | None:
    """Why `alias` can't be used, or None: 3 to 20 characters of [0-9A-Za-z], not reserved."""
    if not is_code(alias):
        return Refusal(
            Reason.INVALID_ALIAS,
            f"alias {alias[:40]!r} must be 3 to 20 characters of 0-9, A-Z, a-z",
            "alias",
        )
    if is_reserved(alias):
        return Refusal(
            Reason.RESERVED, f"alias {alias!r} is reserved; choose another word", "alias"
        )
    return None


def suggestions(alias: str) -> Iterator[str]:
    """Well-formed aliases like `alias`, likeliest first; the caller looks for a free one."""
    stem = re.sub(r"[^0-9A-Za-z]", "", alias)[:17]
    while stem and is_reserved(stem + "1"):
        stem = stem[:-1]
    for number in range(1, 100):
        candidate = f"{stem}{number}" if stem else f"my{number}"
        if check_alias(candidate) is None:
            yield candidate


def check_labels(tags: Sequence[str], metadata: Sequence[tuple[str, str]]) -> Refusal | None:
    """Why these tags or metadata can't be kept, or None; the bounds are this module's."""
    return (
        check_texts("tags", tags, MAX_LABEL)
        or check_texts("metadata", [name for name, _ in metadata], MAX_LABEL)
        or check_texts("metadata", [value for _, value in metadata], MAX_VALUE)
    )


def check_texts(field: str, texts: Sequence[str], most: int) -> Refusal | None:
    """Why these texts can't be kept as `field`, or None; `most` characters each, all printable."""
    if len(texts) > MAX_LABELS:
        return Refusal(
            Reason.INVALID_LABELS, f"{field}: {len(texts)} entries; the most is {MAX_LABELS}", field
        )
    for text in texts:
        if not text or len(text) > most or not text.isprintable():
            return Refusal(
                Reason.INVALID_LABELS,
                f"{field}: {text[:40]!r} must be 1 to {most} printable characters",
                field,
            )
    return None
