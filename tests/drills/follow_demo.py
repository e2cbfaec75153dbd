"""Drill: how soon a manifest that is dropped, edited or deleted is followed (aim: within a second).

python -m tests.drills.follow_demo --rounds 50
"""

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path

from tests.drills.demo_process import DemoProcess, Reply, wait_for

AIM_SECONDS = 1.0


def drill(rounds: int, place: Path) -> dict[str, list[float]]:
    """Seconds from each change of the folder to the first right answer."""
    times: dict[str, list[float]] = {"dropped": [], "edited": [], "deleted": []}
    with DemoProcess(place) as demo:
        demo.start()
        for round_ in range(rounds):
            code = f"round{round_}"
            steps = (
                ("dropped", 302, "https://example.com/1"),
                ("edited", 302, "https://example.com/2"),
            )
            path = place
            for step, status, target in steps:
                # A namespace of its own, for else the mass-deletion brake would hold the eleventh.
                path = demo.write_manifest(code, {"target": target, "code": code}, namespace=code)
                times[step].append(_until(demo, code, Reply(status, target, None)))
            path.unlink()
            times["deleted"].append(_until(demo, code, Reply(410, None, None)))
    return times


def _until(demo: DemoProcess, code: str, reply: Reply) -> float:
    return wait_for(lambda: demo.visit(code) == reply, f"{code} to answer {reply}")


def main() -> None:
    """Run the drill, print its figures as JSON, and exit 1 when the aim was missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=50)
    with tempfile.TemporaryDirectory(prefix="shortlink-follow-") as place:
        times = drill(parser.parse_args().rounds, Path(place))
    for step, seconds in times.items():
        print(
            json.dumps(
                {
                    "step": step,
                    "rounds": len(seconds),
                    "p50_s": round(statistics.median(seconds), 3),
                    "worst_s": round(max(seconds), 3),
                }
            )
        )
    if max(max(seconds) for seconds in times.values()) > AIM_SECONDS:
        sys.exit(f"slower than {AIM_SECONDS} s")


if __name__ == "__main__":
    main()
