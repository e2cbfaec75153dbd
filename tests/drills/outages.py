"""Drill (M1, M4, L5, F2, F7, F11): store and network of whole regions fail while people use all.

    python -m tests.drills.outages --seconds 20

A data centre's Cassandra is killed, then a second one's, and both come back; a region's cable is
cut and mended; a region's disk is wiped, built anew and admitted. Each fault has a row for the
time in which it is noticed (nothing is promised there but that no answer is wrong), one for the
time after, and one for what the end of the fault may answer. In the end every acknowledged link
is looked at in all regions.
"""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from local.regions import faults
from local.regions.layout import REGIONS
from local.stacks import store_address
from tests.drills.site import Site, open_site, site_options
from tests.drills.visitors import Crowd, Rates, broken_promises, finish, make_known

KNOWN = 300
"""So many that most visits read the store: a cache keeps each link for 5 s."""

PREPARE_SECONDS = 120.0
UNKNOWN_SECONDS = 5.0
"""A write whose outcome is unknown is tried for 4 s (conditional.DEADLINE)."""

EAST, WEST, SOUTH = ALL = tuple(region.name for region in REGIONS)


@dataclass(frozen=True, slots=True)
class Phase:
    """What is broken, and what is promised meanwhile: visits are redirected in all regions;
    births succeed in `births` and aliases and changes in `changes`, and are 503 elsewhere.
    """

    name: str
    act: Callable[[], object]
    births: Collection[str] = ALL
    changes: Collection[str] = ALL


def judge(crowd: Crowd, phase: Phase) -> list[str]:
    """The promises of a phase that did not hold, once it was noticed."""
    broken = []
    for people in crowd.people:
        region = people.region.name
        for what, goes_on in (
            ("visit", True),
            ("birth", region in phase.births),
            ("alias", region in phase.changes),
            ("change", region in phase.changes),
        ):
            results = crowd.counted(phase.name, what, region)
            broken += broken_promises(f"{phase.name}, {region}", what, results, goes_on=goes_on)
    return broken


def admit(region: str) -> None:
    """Tell the platform that the region's data centre is whole again, as its runbook says."""
    store = {"SHORTLINK_STORE": store_address(), "SHORTLINK_REGION": region}
    subprocess.run(
        [sys.executable, "-m", "shortlink", "prepare", "--admit", region],
        env=os.environ | store,
        check=True,
        timeout=PREPARE_SECONDS,
    )


def rebuild(region: str) -> None:
    """Fill the wiped data centre from the others, and admit it."""
    faults.rebuild_cassandra(region)
    admit(region)


PHASES = (
    Phase("all well", lambda: None),
    Phase(
        f"{EAST}: Cassandra killed",
        lambda: faults.kill(EAST, "cassandra"),
        births=(WEST, SOUTH),
    ),
    Phase(
        f"{EAST}, {WEST}: Cassandra killed",
        lambda: faults.kill(WEST, "cassandra"),
        births=(SOUTH,),
        changes=(),
    ),
    Phase("both back", faults.heal),
    Phase(f"{SOUTH}: cable cut", lambda: faults.cut(SOUTH), changes=(EAST, WEST)),
    Phase(f"{SOUTH}: cable mended", lambda: faults.mend(SOUTH)),
    Phase(
        f"{WEST}: disk wiped, Cassandra empty",
        lambda: faults.wipe_cassandra(WEST),
        births=(EAST, SOUTH),
    ),
    Phase(f"{WEST}: rebuilt and admitted", lambda: rebuild(WEST)),
)


def drill(site: Site, noticed: float, seconds: float, rates: Rates, seed: int) -> int:
    """All phases under load, then the look at every link."""
    known = asyncio.run(make_known(site, KNOWN))
    broken: list[str] = []
    try:
        with Crowd(site, known, rates, seed) as crowd:
            for phase in PHASES:
                crowd.begin(f"{phase.name}, first {noticed:.0f} s")
                phase.act()
                time.sleep(noticed)
                crowd.begin(phase.name)
                time.sleep(seconds)
                crowd.begin(f"{phase.name}, as it ends")  # the next phase may answer these
                time.sleep(UNKNOWN_SECONDS)
    finally:
        faults.heal()
    for phase in PHASES:
        broken += judge(crowd, phase)
    print(f"seed {seed}; in each region per second: {rates}")
    held = (
        "redirects went on in all regions through each outage; births went on wherever the"
        " region's own data centre was whole, changes wherever a majority was; everything else"
        " was told 503; all that was acknowledged is there"
    )
    return asyncio.run(finish(site, crowd, known, held, broken))


def main() -> None:
    """Run the drill; exit 1 when a promise was broken."""
    parser = site_options(__doc__)
    parser.add_argument("--noticed", type=float, default=20.0, help="seconds to notice a fault")
    parser.add_argument("--seconds", type=float, default=20.0, help="seconds of a phase after it")
    parser.add_argument("--rate", type=float, default=15.0, help="visits per second and region")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    args = parser.parse_args()
    rates = Rates(visits=args.rate)
    sys.exit(drill(open_site(args), args.noticed, args.seconds, rates, args.seed))


if __name__ == "__main__":
    main()
