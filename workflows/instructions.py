"""Instructions composed from templates: the requests to an assistant that the bundled data sets lack (pure).

Answers come from the verifier, so a prompt need only put it on a subject and into a form of text: essay, letter, code,
steps, table, dialogue, sum. The templates are in instructions.yaml.
"""

import itertools
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

TEMPLATES = Path(__file__).with_name("instructions.yaml")
SLOT = re.compile(r"{(\w+)}")


def compose() -> Iterator[tuple[str, str]]:
    """(id, instruction) in a fixed order: of each template all combinations of its slots, or a seeded draw of them."""
    spec: Any = OmegaConf.to_container(OmegaConf.load(TEMPLATES))
    for category, templates in spec["templates"].items():
        for number, template in enumerate(templates):
            slots = SLOT.findall(template)
            values = list(itertools.product(*(spec["slots"][slot] for slot in slots)))
            if len(values) > spec["per_template"]:
                values = random.Random(template).sample(values, spec["per_template"])
            for i, chosen in enumerate(values):
                yield f"{category}-{number}-{i}", template.format(**dict(zip(slots, chosen, strict=True)))
