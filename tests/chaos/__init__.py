"""Faults at random times against a real extraction on a local cluster: python -m tests.chaos --minutes 20 --seed S"""

import os

# before ray is imported, here and in the drivers that inherit it
os.environ.setdefault("RAY_AUTH_MODE", "disabled")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
