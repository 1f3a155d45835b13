"""What things cost: scripts that print figures, never timed tests. Each is run as python -m tests.bench.NAME"""

import os

# before ray is imported, here and in the processes that inherit it
os.environ.setdefault("RAY_AUTH_MODE", "disabled")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
