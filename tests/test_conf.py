"""Every configuration that we ship composes and validates; what the schema does not know is refused."""

from pathlib import Path

import pytest
from hydra.errors import HydraException

from actors.verifier import Verifier
from tests.composed import typed
from workflows.config import ConfigError, validate

CONF = Path(__file__).parents[1] / "conf"
EXPERIMENTS = sorted(file.stem for file in (CONF / "experiment").glob("*.yaml"))
OPTIONS = sorted(f"{f.parent.name}={f.stem}" for f in CONF.glob("*/*.yaml") if f.parent.name != "experiment")
SMOLLM2 = Verifier("/models/smollm2", "0" * 16, 576, 30, 49152, 8192, "LlamaForCausalLM", 9, 1e-5)


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_every_experiment_composes_and_validates(experiment: str) -> None:
    config = typed(f"experiment={experiment}")
    validate(config, SMOLLM2 if config.verifier.source == "bundled:smollm2" else None)


@pytest.mark.parametrize("option", OPTIONS)
def test_every_option_of_every_group_has_keys_that_the_schema_knows(option: str) -> None:
    typed("experiment=smoke", option)


def test_smoke_is_smollm2_cpu_made_small() -> None:
    smoke, whole = typed("experiment=smoke"), typed("experiment=smollm2_cpu")
    assert (smoke.verifier, smoke.draft, smoke.engine) == (whole.verifier, whole.draft, whole.engine)
    assert smoke.prompts.max_prompts and whole.prompts.max_prompts
    assert smoke.prompts.max_prompts < whole.prompts.max_prompts


@pytest.mark.parametrize("key", ["typo", "train.typo", "extract.workers.typo", "prompts.sources.bfcl.typo"])
@pytest.mark.parametrize("plus", ["", "+", "++"])
def test_unknown_keys_are_refused_however_they_are_given(plus: str, key: str) -> None:
    with pytest.raises((HydraException, ConfigError), match="typo"):
        typed("experiment=smoke", f"{plus}{key}=1")


@pytest.mark.parametrize(
    "override",
    [
        "train.epochs=many",
        "train.epochs=1.5",
        "train.optimizer=sgd",
        "extract.mode=magic",
        "prompts.too_long=perhaps",
        "draft.aux_layers=[a,b]",
        "draft.aux_layers=3",
        "train.use_gpu=perhaps",
        "engine=nope",
    ],
)
@pytest.mark.parametrize("plus", ["", "++"])
def test_wrong_types_and_wrong_choices_are_refused(plus: str, override: str) -> None:
    with pytest.raises((HydraException, ConfigError)):
        typed("experiment=smoke", f"{plus}{override}")


def test_free_dictionaries_take_new_keys() -> None:
    config = typed("experiment=smoke", "+engine.env.A=b", "+engine.extra.seed=3")
    assert config.engine.env["A"] == "b" and config.engine.extra == {"seed": 3}
