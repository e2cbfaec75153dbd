"""Where a link may point: the URL Standard's parser, and the platform's own refusals (P2)."""

import re
from unicodedata import normalize

import ada_url

from shortlink.links.refusal import Reason, Refusal

MAX_TARGET = 2048
"""Characters of a target, as given and as stored (S2)."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def _is_punycode(label: str) -> bool:
    # ada-url takes any ASCII host as it is. The URL Standard's domain to ASCII also wants such a
    # label to stand for text that is not ASCII and that UTS 46 maps to itself.
    try:
        text = label[4:].encode("ascii").decode("punycode")
    except UnicodeError:
        return False
    return not text.isascii() and normalize("NFKC", text.lower()) == text


def parse_target(text: str, own_hosts: frozenset[str]) -> str | Refusal:
    """The target as the URL Standard serialises it, which is how it is stored and sent.

    `own_hosts` holds `host` (any port) or `host:port` entries. Control characters are refused
    before parsing, because the parser would silently drop tabs and newlines.
    """

    def no(message: str) -> Refusal:
        return Refusal(Reason.INVALID_TARGET, message, "target")

    if len(text) > MAX_TARGET:
        return no(f"target has {len(text)} characters; the most is {MAX_TARGET}")
    if control := _CONTROL.search(text):
        return no(
            f"target has the control character U+{ord(control.group()):04X} at position"
            f" {control.start()}; remove it or percent-encode it"
        )
    try:
        url = ada_url.URL(text)
    except (ValueError, UnicodeEncodeError):
        return no(
            f"target {text[:80]!r} is not an absolute URL by the URL Standard;"
            " begin it with https:// and its host"
        )
    if url.protocol not in ("http:", "https:"):
        return no(f"target has the scheme {url.protocol[:20]!r}; only http and https are served")
    if url.username or url.password:
        return no("target carries a user name or password before its host; remove it")
    if any(
        label.startswith("xn--") and not _is_punycode(label) for label in url.hostname.split(".")
    ):
        return no(f"target has the host {url.hostname[:80]!r}, of which a label is no Punycode")
    href = url.href
    if len(href) > MAX_TARGET:
        return no(
            f"target has {len(href)} characters once percent-encoded; the most is {MAX_TARGET}"
        )
    host = url.hostname.rstrip(".")
    port = url.port or ("443" if url.protocol == "https:" else "80")
    if host in own_hosts or f"{host}:{port}" in own_hosts:
        return no(f"target is on {host}, which this platform serves itself: that would loop")
    return href
