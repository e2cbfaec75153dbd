"""Hypothesis for all tests: no deadlines, for a busy machine is no fault; and the same examples
each time, except in `make prove`."""

import os

from hypothesis import HealthCheck, settings

LONG = os.environ.get("HYPOTHESIS_PROFILE") == "long"

settings.register_profile(
    "shortlink",
    deadline=None,
    derandomize=not LONG,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("shortlink")
