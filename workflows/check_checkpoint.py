"""Compare a draft with a reference: python -m workflows.check_checkpoint PATH [--reference FILE]

Prints every tensor (name, ours, reference, verdict) and how vLLM reads each key of config.json. Without --reference the
tensors are compared with what the checkpoint's own config.json says. `kimi_k2` names the AQ-MedAI draft of Kimi-K2.
Exit code: 0 equal, 1 a tensor differs, 2 something cannot be read.
"""

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from actors.draft_contents import content_faults
from actors.draft_explained import explain
from actors.draft_flags import effective_flags, flags_of
from actors.draft_shapes import WEIGHTS, aligned, compare, differences, shapes_of, table
from workflows.tables import plain

BUNDLED = {"kimi_k2": Path(__file__).parent / "references" / "kimi_k2_eagle3.json"}


@dataclass(frozen=True)
class Reference:
    """A published draft: `tensors` name -> shape, and what vLLM makes of its config.json."""

    source: str
    tensors: dict[str, list[int]]
    flags: dict[str, Any]


def read_reference(name: str) -> Reference:
    """A bundled reference, or a file like it: source, config, tensors, optional. ValueError says what fails."""
    file = BUNDLED.get(name, Path(name))
    advice = f"Give a file like workflows/references/kimi_k2_eagle3.json, or one of: {', '.join(BUNDLED)}."
    try:
        read = json.loads(file.read_text(encoding="utf-8"))
        tensors = {**read["tensors"], **read.get("optional", {})}
        flags = flags_of(read["config"], str(file))
    except OSError as error:
        raise ValueError(f"--reference: {file} cannot be read ({error}). {advice}") from error
    except KeyError as error:
        raise ValueError(f"--reference: {file} has no key {error}. {advice}") from error
    except (ValueError, TypeError) as error:
        raise ValueError(f"--reference: {file} does not parse ({error}). {advice}") from error
    return Reference(read.get("source", str(file)), tensors, flags)


def check(path: Path, reference: Reference | None) -> bool:
    """Print the comparison of the checkpoint folder `path`; True when no tensor differs."""
    if not (path / WEIGHTS).is_file():
        raise ValueError(f"{path} holds no {WEIGHTS}. Give a checkpoint folder, e.g. convert/<fingerprint>/flat.")
    flags = effective_flags(path)
    rows = compare(path, reference.tensors if reference else shapes_of(flags))
    print(f"{path} against {reference.source if reference else 'its own config.json'}\n")
    print(table(rows))
    faults = content_faults(path)
    print("\nHow vLLM reads config.json (! where the draft may run as another model than was trained):\n")
    readings = [(f"{'!' if r.unsafe else ' '} {r.key}", str(r.value), r.source, r.remark) for r in explain(path)]
    print(aligned(readings))
    if reference:
        differ = [[key, str(flags[key]), str(value)] for key, value in reference.flags.items() if flags[key] != value]
        print(f"\nconfig.json, {len(differ)} keys differ from the reference (that alone is no failure):\n")
        print(plain(["key", "ours", "reference"], differ))
    wrong = differences(rows)
    print()
    for fault in faults:
        print(f"FAULT: {fault}")
    print(f"{len(rows)} tensors, {len(wrong)} differ" if wrong or faults else f"equal: {len(rows)} tensors")
    return not wrong and not faults


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m workflows.check_checkpoint", description=__doc__.splitlines()[0])
    parser.add_argument("path", type=Path, help="folder with config.json and model.safetensors, in either format")
    parser.add_argument("--reference", metavar="FILE", help=f"a reference file, or one of: {', '.join(BUNDLED)}")
    args = parser.parse_args(argv)
    try:
        equal = check(args.path, read_reference(args.reference) if args.reference else None)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
