"""Real input (S2): the URL Standard's 267 http(s) cases by `kubectl apply`, then redirected.

    python -m tests.drills.operator_wpt

What the standard parses leads to its `href`; what it does not parse, and what this platform
refuses besides, is refused: by kubectl or the API server where they can know, else by the
operator in the Ready condition. It has to be the embedded platform's table, case for case.
"""

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import yaml

from tests.apiserver import ScratchCluster, scratch_cluster
from tests.drills.site import table, verdict
from tests.operator_rig import Objects, OperatorProcess, RedirectProcess, manifest, ready
from tests.wpt_cases import HALF, REFUSED, Case, cases

NAMESPACE = "default"
AT_ONCE = 4
WHERE = ("redirected", "kubectl", "API server", "operator")


@dataclass(frozen=True, slots=True)
class Outcome:
    """Where it ended, one of WHERE; the Location, or the words of the refusal."""

    where: str
    said: str


class Applied:
    """A cluster with an operator, and a redirect process on the same store."""

    def __init__(
        self, cluster: ScratchCluster, objects: Objects, redirect: RedirectProcess, place: Path
    ) -> None:
        self._cluster = cluster
        self._objects = objects
        self._redirect = redirect
        self._place = place

    def outcome(self, number: int, case: Case) -> Outcome:
        """Apply the case, wait for its condition, follow its link."""
        key, code = f"{NAMESPACE}/case-{number}", f"case{number}"
        text = yaml.safe_dump(
            manifest(key, {"target": case.input, "code": code}), allow_unicode=True
        )
        path = self._place / f"case-{number}.yaml"
        path.write_text(text, encoding="utf-8", errors="surrogatepass")
        try:
            self._cluster.kubectl("apply", "-f", str(path))
        except AssertionError as refused:
            asked = "is invalid" in str(refused)
            answer = Outcome("API server" if asked else "kubectl", str(refused))
        else:
            condition = ready(self._objects.settled(key))
            assert condition is not None
            if condition["status"] == "True":
                return Outcome("redirected", self._redirect.visit(code).location or "nowhere")
            answer = Outcome("operator", f"{condition['reason']}: {condition['message']}")
        visited = self._redirect.visit(code)
        return answer if visited.status == 404 else Outcome("redirected", str(visited))


def differences(case: Case, outcome: Outcome) -> list[str]:
    """What is not as the embedded platform has it."""
    shown = f"{case.input!a}: {outcome.where}: {outcome.said}"
    if case.stored is not None:
        same = outcome == Outcome("redirected", case.stored)
        return [] if same else [f"{shown}, not to {case.stored!a}"]
    if outcome.where == "redirected":
        return [f"{shown}, but it is to be refused"]
    if outcome.where == "operator" and not outcome.said.startswith("InvalidTarget: "):
        return [f"{shown}, but its reason is InvalidTarget"]
    words = REFUSED.get(case.input)
    if words not in (None, HALF) and words not in outcome.said:
        return [f"{shown}, which does not say {words!r}"]
    return []


def drill(place: Path) -> int:
    """Apply all, print, judge."""
    every = list(enumerate(cases()))
    with scratch_cluster() as cluster:
        cluster.apply_crds()
        objects = Objects(cluster)
        with (
            OperatorProcess(place, cluster.kubeconfig) as operator,
            RedirectProcess(place) as redirect,
            ThreadPoolExecutor(AT_ONCE) as threads,
        ):
            for each in (operator, redirect):
                each.start()
                each.wait_ready()
            applied = Applied(cluster, objects, redirect, place)
            outcomes: Sequence[Outcome] = list(
                threads.map(lambda numbered: applied.outcome(*numbered), every)
            )
        objects.close()
    kinds: Counter[tuple[str, str]] = Counter()
    broken = []
    for (_, case), outcome in zip(every, outcomes, strict=True):
        kind = "as the standard writes it" if case.stored is not None else "refused by P2"
        kinds[kind if case.href is not None else "not a URL", outcome.where] += 1
        broken += differences(case, outcome)
    expected = list(dict.fromkeys(kind for kind, _ in kinds))
    rows = [
        (kind, *(kinds[kind, where] for where in WHERE), sum(kinds[kind, w] for w in WHERE))
        for kind in expected
    ]
    print(table(("267 cases by kubectl apply", *WHERE, "all"), rows))
    return verdict(broken, "each case ends as on the embedded platform")


def main() -> None:
    """Run it; exit 1 when a case ends otherwise."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    with tempfile.TemporaryDirectory(prefix="shortlink-wpt-") as name:
        status = drill(Path(name))
    sys.exit(status)


if __name__ == "__main__":
    main()
