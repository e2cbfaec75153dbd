"""The embedded platform in this process, over real sockets, on real files."""

import asyncio
import io
from collections.abc import AsyncIterator
from http.client import HTTPConnection
from pathlib import Path

import pytest
import yaml
from rich.console import Console

from shortlink.api.keys import Keys
from shortlink.clock import SYSTEM_CLOCK
from shortlink.demo.embedded import HOST, Embedded, Settings
from shortlink.demo.tour import tour
from shortlink.links.policy import Policy
from tests.drills.demo_process import free_ports
from tests.wpt_cases import REFUSED, cases


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    for name in ("links", "data"):
        (tmp_path / name).mkdir()
    return Settings(tmp_path / "links", tmp_path / "data", *free_ports(3))


@pytest.fixture
async def platform(settings: Settings) -> AsyncIterator[Embedded]:
    opened = await Embedded.open(settings, Policy(), SYSTEM_CLOCK, Keys([]))
    async with opened:
        yield opened


async def test_the_tour_finds_every_answer_as_it_has_to_be() -> None:
    printed = io.StringIO()
    assert await tour(Console(file=printed), SYSTEM_CLOCK.wall), printed.getvalue()
    assert "Not shown:" in printed.getvalue()


async def test_p2_r1_real_urls_are_applied_and_redirected_as_the_url_standard_writes_them(
    platform: Embedded, settings: Settings
) -> None:
    for number, case in enumerate(cases()):
        manifest = {
            "apiVersion": "shortlink.platform/v1alpha1",
            "kind": "ShortLink",
            "metadata": {"name": f"case-{number}"},
            "spec": {"target": case.input, "code": f"case{number}"},
        }
        text = yaml.safe_dump(manifest, allow_unicode=True)
        path = settings.folder / f"case-{number}.yaml"
        path.write_text(text, encoding="utf-8", errors="surrogatepass")
    for _ in range(2):
        await platform.follower.run()

    def visit_all() -> list[tuple[int, str | None]]:
        connection = HTTPConnection(HOST, settings.port, timeout=10)
        answers = []
        for number, _ in enumerate(cases()):
            connection.request("GET", f"/case{number}")
            response = connection.getresponse()
            response.read()
            answers.append((response.status, response.getheader("Location")))
        connection.close()
        return answers

    answers = await asyncio.to_thread(visit_all)
    assert len(answers) == 267
    wrong = {
        case.input: answer
        for case, answer in zip(cases(), answers, strict=True)
        if answer != ((302, case.stored) if case.stored is not None else (404, None))
    }
    assert wrong == {}
    outcomes = platform.reconciler.outcomes
    told = {
        case.input: outcomes[f"default/case-{number}"].message
        for number, case in enumerate(cases())
        if f"default/case-{number}" in outcomes
    }
    assert {text: words for text, words in REFUSED.items() if words not in told.get(text, "")} == {
        text: words for text, words in REFUSED.items() if "\ud800" in text
    }, "a refusal without its reason; only a lone surrogate can't even be read from a file"
