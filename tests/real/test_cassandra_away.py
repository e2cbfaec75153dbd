"""Every promise of the store holds while one region's Cassandra is dead (S1, S5)."""

import subprocess
import sys
from pathlib import Path

import pytest

from local.regions import faults

AWAY = "ap-southeast-1"
ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(900)
def test_the_whole_contract_holds_with_one_region_away_S1_S5() -> None:
    words = f"tests/contract --stores cassandra --away {AWAY} -q --timeout 120"
    try:
        contract = subprocess.run(
            [sys.executable, "-m", "pytest", *words.split()],
            cwd=ROOT,
            capture_output=True,
            text=True,
        )
    finally:
        faults.start(AWAY, "cassandra")
    assert contract.returncode == 0, contract.stdout[-5000:] + contract.stderr
    assert " passed" in contract.stdout
