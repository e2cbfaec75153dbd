"""Where links may point (P2, S2); the rows are faults that other shorteners had."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shortlink.links.refusal import Reason, Refusal
from shortlink.links.targets import MAX_TARGET, parse_target

OWN = frozenset({"sho.rt", "127.0.0.1:8080", "[::1]:8080", "xn--bcher-kva.example"})
OTHER = "https://example.com/"


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        ("https://example.com", OTHER),
        ("HTTPS://EXAMPLE.com:443/", OTHER),
        ("http://example.com:80/", "http://example.com/"),
        ("http://example.com:7/", "http://example.com:7/"),
        ("https://example.com:65535/", "https://example.com:65535/"),
        ("  https://example.com/a  ", "https://example.com/a"),
        ("https://example.com/a b", "https://example.com/a%20b"),
        ("https://example.com/a\u200b", "https://example.com/a%E2%80%8B"),
        ("https://example.com/a\u00a0", "https://example.com/a%C2%A0"),
        (
            "https://example.com/\u6f22?\u5b57#\u00e9",
            "https://example.com/%E6%BC%A2?%E5%AD%97#%C3%A9",
        ),
        # percent-escapes and query bytes are nobody's to touch
        ("https://example.com/t?e=a%2Bb%2Fc%3D", "https://example.com/t?e=a%2Bb%2Fc%3D"),
        ("https://example.com/?c=%24+1%0Ar+2", "https://example.com/?c=%24+1%0Ar+2"),
        ("https://example.com/%0d%0aSet-Cookie:a=1", "https://example.com/%0d%0aSet-Cookie:a=1"),
        ("https://example.com/Goes%d%s.pdf", "https://example.com/Goes%d%s.pdf"),
        (
            "https://example.com/?1=x&flag&a.b=d&arr[]=1",
            "https://example.com/?1=x&flag&a.b=d&arr[]=1",
        ),
        ('https://example.com/"><script>', "https://example.com/%22%3E%3Cscript%3E"),
        ("https://example.com/a/../b/./c", "https://example.com/b/c"),
        ("https://example.com\\a", "https://example.com/a"),
        ("https:example.com/a", "https://example.com/a"),
        (
            "https://raw.example.com/o/r/main/Dockerfile",
            "https://raw.example.com/o/r/main/Dockerfile",
        ),
        ("https://www.xn--bld-tna.example", "https://www.xn--bld-tna.example/"),
        # people see look-alikes as the A-label that they are
        (
            "https://www.\u0430\u0440\u0440\u04cf\u0435.example/",
            "https://www.xn--80ak6aa92e.example/",
        ),
        ("https://b\u00fccher.test/", "https://xn--bcher-kva.test/"),
        ("http://2130706433/", "http://127.0.0.1/"),
        ("https://sho.rt.example.com/", "https://sho.rt.example.com/"),
        ("https://xsho.rt/", "https://xsho.rt/"),
        ("https://example.com/?to=https://sho.rt/", "https://example.com/?to=https://sho.rt/"),
        ("http://127.0.0.1:8081/", "http://127.0.0.1:8081/"),
        ("https://127.0.0.1/", "https://127.0.0.1/"),
    ],
)
def test_S2_P2_a_target_is_kept_as_the_url_standard_writes_it(text: str, stored: str) -> None:
    assert parse_target(text, OWN) == stored
    assert parse_target(stored, OWN) == stored


@pytest.mark.parametrize(
    "text",
    [
        "javascript:alert(1)",
        "JaVaScRiPt:alert(1)",
        "  javascript:alert(1)",
        "java\tscript:alert(1)",
        "java\nscript:alert(1)",
        "\tjavascript:alert(1)",
        "\x01javascript:alert(1)",
        "java%0ascript:alert(1)",
        "javascript://example.com/%0aalert(1)",
        "vbscript:x",
        "data:text/html,<script>alert(1)</script>",
        "DATA:text/html;base64,PHNjcmlwdD4=",
        "blob:https://example.com/u",
        "view-source:https://example.com",
        "intent://x#Intent;end",
        "file:///etc/passwd",
        "ftp://example.com/f",
        "ws://example.com/",
        "mailto:ann@example.com",
        "about:blank",
        "smb://example.com/",
        "httpx://example.com/",
    ],
)
def test_P2_only_http_and_https_are_served(text: str) -> None:
    refused(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "example.com",
        "//example.com/x",
        "/abc",
        "?q",
        "#f",
        "99999",
        "http",
        "http:",
        "http://",
        "https:///",
        "http://?q",
        "http://example.com:99999/",
        "http://example.com:65536/",
        "http://example.com:-1/",
        "http://example.com:8o/",
        "http://exa mple.com/",
        "http://example.com%00/",
        "http://ex%0aample.com/",
        "http://ex<ample>.com/",
        "http://[::1/",
        "http://[fe80::1%25eth0]/",
        "http://256.256.256.256/",
        "http://1.2.3.4.5/",
        "http://0x100000000/",
        "http://\u00ad/",
        "http://\u00e9.xn--pokxncvks/",
        "http://xn--/",
        "http://a.xn--pokxncvks/",
        "http://xn--99999999/",
        "http://xn--example-.com/",
        "http://xn--B\u00dcCHER-kva.example/",
        "\u00a0https://example.com",
        "https\u200b://example.com",
        "\ufeffhttps://example.com",
    ],
)
def test_P2_what_the_url_standard_does_not_parse_is_refused(text: str) -> None:
    refused(text)


@pytest.mark.parametrize(
    "text",
    [
        "https://example.com/\r\nSet-Cookie: a=1",
        "https://example.com/a\tb",
        "https://exam\nple.com/",
        "https://example.com/\n",
        "https://example.com/\x00",
        "https://example.com/\x1b[31m",
        "https://example.com/\x7f",
        "https://example.com/\x85",
        "https://example.com/\u2028",
        "https://example.com/\u2029",
    ],
)
def test_P2_control_characters_are_refused_not_dropped(text: str) -> None:
    assert "control character U+" in refused(text).message


@pytest.mark.parametrize("text", ["https://example.com/\ud800", "https://\udfff/", "\ud83d"])
def test_P2_half_a_character_is_refused(text: str) -> None:
    refused(text)


@pytest.mark.parametrize(
    "text",
    [
        "https://bank.example@evil.example/",
        "https://ann:secret@example.com/",
        "https://:secret@example.com/",
        "https://ann@example.com/",
        "https:\\\\ann@example.com/",
        "https:ann@sho.rt",
    ],
)
def test_P2_a_user_name_before_the_host_is_refused(text: str) -> None:
    assert "user name or password" in refused(text).message


@pytest.mark.parametrize(
    "text",
    [
        "https://sho.rt",
        "http://sho.rt/abc",
        "https://SHO.RT/abc",
        "https://sho.rt./abc",
        "https://sho.rt:8443/abc",
        "https://s%68o.rt/",
        "https:sho.rt",
        "https:\\\\sho.rt\\abc",
        "https://sho\u3002rt/",  # an ideographic full stop
        "https://\uff53\uff48\uff4f.\uff52\uff54/",  # full width
        "https://sh\u00ado.rt/",  # soft hyphen
        "https://b\u00fccher.example/",
        "https://BU\u0308CHER.example./",
        "https://xn--bcher-kva.example/",
        "http://127.0.0.1:8080/abc",
        "https://127.0.0.1:8080/abc",
        "http://2130706433:8080/",
        "http://0x7f000001:8080/",
        "http://0x7f.1:8080/",
        "http://0177.0.0.1:8080/",
        "http://127.1:08080/",
        "http://127.0.0.1.:8080/",
        "http://\uff11\uff12\uff17.0.0.1:8080/",
        "http://[::1]:8080/",
        "http://[0:0:0:0:0:0:0:1]:8080/",
    ],
)
def test_P2_no_link_leads_back_to_the_platform(text: str) -> None:
    assert "would loop" in refused(text).message


def test_P2_an_own_host_with_a_port_means_its_schemes_port_too() -> None:
    own = frozenset({"a.example:443", "b.example:80"})
    assert isinstance(parse_target("https://a.example/", own), Refusal)
    assert isinstance(parse_target("http://b.example/", own), Refusal)
    assert isinstance(parse_target("http://a.example:443/", own), Refusal)
    assert parse_target("http://a.example/", own) == "http://a.example/"
    assert parse_target("https://b.example/", own) == "https://b.example/"


def test_S2_the_longest_target() -> None:
    longest = OTHER + "a" * (MAX_TARGET - len(OTHER))
    assert MAX_TARGET == 2048
    assert parse_target(longest, OWN) == longest
    assert "2049 characters; the most is 2048" in refused(longest + "a").message
    refused(OTHER + "a" * 70_000)


def test_S2_a_target_is_measured_as_it_is_stored_too() -> None:
    text = OTHER + "\u6f22" * 300
    assert len(text) < MAX_TARGET
    assert "2720 characters once percent-encoded" in refused(text).message


@given(st.text(), st.sampled_from(["", "http://", "https://", "https://example.com/"]))
def test_P2_any_text_is_refused_or_kept_in_a_form_that_is_safe_in_a_header(
    text: str, before: str
) -> None:
    stored = parse_target(before + text, OWN)
    if isinstance(stored, Refusal):
        return
    assert parse_target(stored, OWN) == stored
    assert stored.startswith(("http://", "https://"))
    assert stored.isascii()
    assert stored.isprintable()
    assert " " not in stored
    assert len(stored) <= MAX_TARGET


def refused(text: str) -> Refusal:
    verdict = parse_target(text, OWN)
    assert isinstance(verdict, Refusal), verdict
    assert (verdict.reason, verdict.field) == (Reason.INVALID_TARGET, "target")
    return verdict
