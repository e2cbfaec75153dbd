"""The URL Standard's own conformance cases that are about targets: real input, expected results.

Of the 820 cases of web-platform-tests' `urltestdata.json` these are the 267 that have no base
URL and whose input begins with `http:` or `https:`. What the standard parses is kept as its
`href`; what it does not parse is refused; and P2's own refusals win, each named in REFUSED.
"""

import json
from dataclasses import dataclass
from functools import cache

from tests.fetch_testdata import TARGET

USER_INFO = "user name or password"
CONTROL = "control character"
HALF = "not an absolute URL"  # a lone surrogate has no UTF-8 form, so no request can carry it

REFUSED = {
    "https://test:@test": USER_INFO,
    "http://%25DOMAIN:foobar@foodomain.com/": USER_INFO,
    "http:a:b@www.example.com": USER_INFO,
    "http:/a:b@www.example.com": USER_INFO,
    "http://a:b@www.example.com": USER_INFO,
    "http::b@www.example.com": USER_INFO,
    "http:/:b@www.example.com": USER_INFO,
    "http://:b@www.example.com": USER_INFO,
    "http:a:@www.example.com": USER_INFO,
    "http:/a:@www.example.com": USER_INFO,
    "http://a:@www.example.com": USER_INFO,
    "http://www.@pple.com": USER_INFO,
    "http://example.com/foo\t\x91%91": CONTROL,
    "http://example.com/foo\tbar": CONTROL,
    "http://ho\tst/": CONTROL,
    "http://ho\nst/": CONTROL,
    "http://ho\rst/": CONTROL,
    "http://foo.bar/baz?qux#foo\x08bar": CONTROL,
    "http://example.org/test?a#b\x00c": CONTROL,
    "https://www.example.com/path{\x7fpath.html?query'\x7f=query#fragment<\x7ffragment": CONTROL,
    "https://x/\x00y": CONTROL,
    "https://x/?\x00y": CONTROL,
    "https://x/?#\x00y": CONTROL,
    "http://example.com/\ud800\U000107fe\udfff\ufdd0\ufdcf\ufdef\ufdf0\ufffe\uffff"
    "?\ud800\U000107fe\udfff\ufdd0\ufdcf\ufdef\ufdf0\ufffe\uffff": HALF,
}
"""Inputs that the standard parses and this platform refuses, with words of the refusal."""


@dataclass(frozen=True, slots=True)
class Case:
    """`href`: as the standard serialises `input`, or None where it does not parse."""

    input: str
    href: str | None

    @property
    def stored(self) -> str | None:
        """The target that the platform keeps for this input, or None where it refuses."""
        return None if self.input in REFUSED else self.href


@cache
def cases() -> tuple[Case, ...]:
    """All cases. Raises FileNotFoundError until `tests/fetch_testdata.py` was run."""
    rows = json.loads(TARGET.read_text(encoding="utf-8"))
    return tuple(
        Case(row["input"], None if row.get("failure") else row["href"])
        for row in rows
        if isinstance(row, dict)
        and row.get("base") is None
        and row["input"].startswith(("http:", "https:"))
    )
