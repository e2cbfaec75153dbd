"""Drill (F12): bad and good deploys of the redirect service, and drained nodes, under load.

    python -m tests.drills.rollouts

In each region: an image that does not exist is rolled out, and undone by
`kubectl rollout undo deployment/redirect`; so is a program that ends at once; then every pod is
replaced by `kubectl rollout restart`. Then the first region gets a second node, and each of the
two is drained in turn, as for maintenance. No request may fail meanwhile.
"""

import asyncio
import json
import sys
import time
from typing import Any

from local.regions.cluster import DEPLOYMENTS
from local.regions.layout import region_named
from local.regions.second import add_node, remove_node
from tests.drills.site import Region, Site, kubectl, open_site, site_options
from tests.drills.visitors import Crowd, Rates, finish, make_known

KNOWN = 60
UNDO = ("rollout", "undo", "deployment/redirect")
STATUS = ("rollout", "status", "deployment/redirect", "--timeout=150s")
DRAIN = ("--ignore-daemonsets", "--delete-emptydir-data", "--timeout=150s")
LAST_WORDS = 3.0
"""Seconds: what the last pod to go does with its connections belongs to its phase."""


def broken_image(region: str) -> None:
    """Roll out an image that is nowhere."""
    _patch(region, {"image": "registry.local/shortlink:broken"})


def broken_program(region: str) -> None:
    """Roll out a program that ends at once."""
    _patch(region, {"command": ["python3", "-c", "raise SystemExit('broken on purpose')"]})


def _patch(region: str, change: dict[str, Any]) -> None:
    template = json.loads(kubectl(region, "get", "deployment/redirect", "-o", "json"))
    name = template["spec"]["template"]["spec"]["containers"][0]["name"]
    spec = {"spec": {"template": {"spec": {"containers": [{"name": name, **change}]}}}}
    kubectl(region, "patch", "deployment/redirect", "-p", json.dumps(spec))


def rolled_out(region: str) -> bool:
    """Whether the newest version of the redirect has all its pods available."""
    status = json.loads(kubectl(region, "get", "deployment/redirect", "-o", "json"))
    wanted, said = status["spec"]["replicas"], status["status"]
    return bool(
        said.get("observedGeneration", 0) >= status["metadata"]["generation"]
        and said.get("updatedReplicas", 0) == wanted == said.get("availableReplicas", 0)
        and said.get("replicas", 0) == wanted
    )


def drill(site: Site, seconds: float, rate: float, seed: int) -> int:
    """All rollouts in all regions, and two drained nodes in the first, then the verdict."""
    known = asyncio.run(make_known(site, KNOWN))
    broken: list[str] = []
    with Crowd(site, known, Rates(rate, 0, 0, 0), seed) as crowd:
        for region in site.regions:
            broken += _region(region, crowd, seconds)
        broken += _nodes(site.regions[0].name, crowd)
    for people in crowd.people:
        broken += [
            f"{phase}: {count} visits in {people.region.name} were {result}"
            for (phase, _, result), count in people.counts.items()
            if result != "right"
        ]
    held = "no visit failed while bad versions came and went, pods and nodes were replaced"
    return asyncio.run(finish(site, crowd, known, held, broken))


def _region(region: Region, crowd: Crowd, seconds: float) -> list[str]:
    broken = []
    for what, act in (("image", broken_image), ("program", broken_program)):
        crowd.begin(f"{region.name}: broken {what} rolled out")
        act(region.name)
        time.sleep(seconds)
        if rolled_out(region.name):
            broken.append(f"the broken {what} was taken for good in {region.name}")
        crowd.begin(f"{region.name}: broken {what} undone")
        kubectl(region.name, *UNDO)
        kubectl(region.name, *STATUS)
    crowd.begin(f"{region.name}: every pod replaced")
    kubectl(region.name, "rollout", "restart", "deployment/redirect")
    kubectl(region.name, *STATUS)
    time.sleep(LAST_WORDS)
    return broken


def _nodes(region: str, crowd: Crowd) -> list[str]:
    first = region_named(region).node.name
    crowd.begin(f"{region}: second node added")
    try:
        second = add_node(region)
        crowd.begin(f"{region}: first node drained")
        broken = _drain(region, first)
        crowd.begin(f"{region}: second node drained")
        kubectl(region, "uncordon", first)
        broken += _drain(region, second)
        crowd.begin(f"{region}: second node removed")
    finally:
        kubectl(region, "uncordon", first)
        remove_node(region)
    time.sleep(LAST_WORDS)
    return broken


def _drain(region: str, node: str) -> list[str]:
    kubectl(region, "drain", node, *DRAIN)
    for deployment in DEPLOYMENTS:
        kubectl(region, "rollout", "status", f"deployment/{deployment}", "--timeout=150s")
    time.sleep(LAST_WORDS)
    left = kubectl(region, "get", "pods", f"--field-selector=spec.nodeName={node}", "-o", "name")
    return [f"{pod} is still on {node}, which was drained" for pod in left.split()]


def main() -> None:
    """Run the drill; exit 1 when a request failed."""
    parser = site_options(__doc__)
    parser.add_argument("--seconds", type=float, default=10.0, help="how long a bad version stays")
    parser.add_argument("--rate", type=float, default=30.0, help="visits per second and region")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    args = parser.parse_args()
    sys.exit(drill(open_site(args), args.seconds, args.rate, args.seed))


if __name__ == "__main__":
    main()
