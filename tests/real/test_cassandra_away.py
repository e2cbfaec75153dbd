"""Every promise of the store holds while one region's Cassandra is dead (S1, S5)."""

import subprocess
import sys

import pytest

from local.regions.layout import CHECKOUT

AWAY = "ap-southeast-1"


@pytest.mark.usefixtures("mended")
@pytest.mark.timeout(900)
def test_the_whole_contract_holds_with_one_region_away_S1_S5() -> None:
    words = f"tests/contract --stores cassandra --away {AWAY} -q --timeout 120"
    contract = subprocess.run(
        [sys.executable, "-m", "pytest", *words.split()],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
    )
    assert contract.returncode == 0, contract.stdout[-5000:] + contract.stderr
    assert " passed" in contract.stdout
