"""Drill (M5, T1): how soon every region redirects a ShortLink that was applied in one of them.

    python -m tests.drills.objects_spread --links 200

Objects are made in one region's cluster, 5 a second. From the API server's answer on, the object
is asked for until it has `status.url`, and then every region's redirects for the first 302.
"""

import argparse
import asyncio
import secrets
import sys
import tempfile
import time
from pathlib import Path

import yaml

from local.regions.layout import KUBECONFIG, REGIONS
from shortlink_operator.cluster import (
    Cluster,
    Login,
    kubeconfig_login,
    object_path,
    objects,
    opened,
)
from tests.drills.site import Site, User, kubectl, local_site, percentile, table, verdict
from tests.drills.spread import LINKS_EVERY, NEW_EVERYWHERE, NEW_POLL, first_seen, paced
from tests.operator_rig import Document, manifest

NAMESPACE = "drill-objects-spread"


def login(region: str) -> Login:
    """An administrator's at a region's API server."""
    config = yaml.safe_load(KUBECONFIG.read_text(encoding="utf-8"))
    config["current-context"] = f"local-{region}"
    with tempfile.TemporaryDirectory() as name:
        path = Path(name, "kubeconfig")
        path.write_text(yaml.safe_dump(config), encoding="utf-8")
        return kubeconfig_login(path)


async def made(cluster: Cluster, name: str, target: str) -> float:
    """Make an object; when the API server had answered."""
    annotations = {"shortlink.platform/allow-delete": "true"}  # all go at once in the end
    document = manifest(f"{NAMESPACE}/{name}", {"target": target}, annotations=annotations)
    await cluster.create(objects("shortlinks", NAMESPACE), document)
    return time.monotonic()


async def told(cluster: Cluster, name: str, began: float) -> Document:
    """The object's status, once there is a URL in it, or when it took too long."""
    while True:
        item = await cluster.get(object_path("shortlinks", NAMESPACE, name))
        status: Document = item.get("status", {})
        if "url" in status or time.monotonic() - began > 2 * NEW_EVERYWHERE:
            return status
        await asyncio.sleep(NEW_POLL)


async def new_object(
    cluster: Cluster, users: list[User], number: int, broken: list[str]
) -> list[float]:
    """Apply one; the seconds until it had its URL, and until each region redirected it."""
    name, target = f"link-{number}", f"https://new.example/{secrets.token_hex(8)}"
    began = await made(cluster, name, target)
    status = await told(cluster, name, began)
    if "url" not in status:
        broken.append(f"{name} has no URL after {time.monotonic() - began:.1f} s: {status}")
        return []
    url_after = time.monotonic() - began
    code = status["code"]
    seen = await asyncio.gather(*(first_seen(u, code, target, began, broken) for u in users))
    return [url_after, *seen]


async def drill(users: list[User], home: str, links: int) -> int:
    """Measure, print, judge."""
    broken: list[str] = []
    async with opened(login(home)) as cluster:
        works = [new_object(cluster, users, number, broken) for number in range(links)]
        took = await paced(works, LINKS_EVERY)
    names = ("status.url", *(f"302 in {user.region.name}" for user in users))
    rows = []
    everywhere = [max(each) for each in took]
    for what, seconds in (
        *((name, [each[n] for each in took]) for n, name in enumerate(names)),
        ("302 everywhere", everywhere),
    ):
        figures = [f"{percentile(seconds, share):.3f}" for share in (0.5, 0.99, 1)] if took else []
        rows.append((what, len(seconds), *(figures or "---"), f"{NEW_EVERYWHERE:.0f}"))
    broken += [f"an object took {worst:.2f} s" for worst in everywhere if worst >= NEW_EVERYWHERE]
    print(f"applied in {home}, one every {LINKS_EVERY} s")
    print(table(("seconds from the API server's answer", "n", "p50", "p99", "worst", "<"), rows))
    return verdict(broken, "every object is redirected in all regions in under 2 s")


async def run(site: Site, home: str, links: int) -> int:
    """The drill, in a namespace of its own."""
    kubectl(home, "create", "namespace", NAMESPACE)
    try:
        async with site.users() as users:
            return await drill(users, home, links)
    finally:
        kubectl(home, "delete", "namespace", NAMESPACE, "--timeout=120s")


def main() -> None:
    """Run the drill; exit 1 when a promise was broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--links", type=int, default=200)
    parser.add_argument("--home", default=REGIONS[0].name, choices=[each.name for each in REGIONS])
    args = parser.parse_args()
    sys.exit(asyncio.run(run(local_site(), args.home, args.links)))


if __name__ == "__main__":
    main()
