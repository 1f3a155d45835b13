"""Change the number of workers of a running extraction: python -m workflows.scale OUTPUT_ROOT workers=N

OUTPUT_ROOT names the run, since one driver at a time works there. Workers that are too many finish their shards first;
new ones start when the cluster has room for them. The number holds until the step ends. Exit code: 0, or 2.
"""

import re
import sys
from pathlib import Path

from actors.pool_size import FILE, read_size, write_size

USAGE = "python -m workflows.scale OUTPUT_ROOT workers=N"


def scale(root: Path, workers: int) -> str:
    """Tell the pool that works below `root`; says what changed. ValueError when none does."""
    if not (root / ".lease").exists():
        raise ValueError(
            f"no driver works on {root}. Give the output_root of a running job; extract.workers.max sets the number of "
            "one that starts."
        )
    pools = sorted(root.glob(f"*/*/{FILE}"), key=lambda file: file.stat().st_mtime)
    if not pools:
        raise ValueError(f"the job on {root} has no pool of workers now: it is before or behind its extraction.")
    step = pools[-1].parent
    before = read_size(step)
    write_size(step, workers)
    return f"{step.parent.name} {step.name}: {before} -> {workers} workers"


def main(argv: list[str] | None = None) -> int:
    args = sys.argv[1:] if argv is None else argv
    matched = re.fullmatch(r"workers=(\d+)", args[1]) if len(args) == 2 else None
    try:
        if not matched or int(matched[1]) < 1:
            raise ValueError(f"usage: {USAGE}, N from 1 (to end a run: ray job stop, or SIGTERM to its driver)")
        print(scale(Path(args[0]), int(matched[1])))
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
