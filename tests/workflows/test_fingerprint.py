"""Identity of a configuration: stable where the result is the same, different where it is not, never guessed."""

import subprocess
import sys
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from conf.schema import EngineConfig, EngineKind, ExtractConfig, TrainConfig, WorkersConfig, runtime
from workflows.fingerprint import fingerprint, identity


class Colour(Enum):
    red = "red"
    blue = "blue"


@dataclass
class Section:
    lr: float = 0.1
    colour: Colour = Colour.red
    layers: list[int] = field(default_factory=lambda: [1, 2])
    workers: int = runtime(1)


def of(**config: Any) -> str:
    return fingerprint(config, {"prompts": "ab12"})


def test_runtime_fields_do_not_count_and_all_others_do() -> None:
    base = Section()
    assert of(train=base) == of(train=replace(base, workers=9))
    changed = [replace(base, lr=0.2), replace(base, colour=Colour.blue), replace(base, layers=[2, 1])]
    assert len({of(train=section) for section in [base, *changed]}) == 4


def test_runtime_fields_of_nested_sections_do_not_count() -> None:
    wide = ExtractConfig(workers=WorkersConfig(min=2, max=8), shards_in_flight=4)
    assert of(extract=ExtractConfig()) == of(extract=wide)
    assert of(extract=ExtractConfig()) != of(extract=ExtractConfig(samples_per_shard=1))


def test_how_an_engine_is_placed_is_not_identity_but_what_it_is_is() -> None:
    elsewhere = EngineConfig(tensor_parallel_size=8, num_gpus=8, transfer_dir="/x", env={"A": "b"}, max_num_seqs=1)
    assert of(engine=EngineConfig()) == of(engine=elsewhere)
    assert of(engine=EngineConfig()) != of(engine=EngineConfig(kind=EngineKind.fake))


def test_order_of_keys_does_not_count_and_order_of_lists_does() -> None:
    assert of(a={"x": 1, "y": 2}, b=1) == of(b=1, a={"y": 2, "x": 1})
    assert of(a=[1, 2]) != of(a=[2, 1])
    assert of(a=(1, 2)) == of(a=[1, 2])


def test_values_that_look_alike_stay_apart() -> None:
    assert len({of(a=value) for value in (1, 1.0, True, "1", None, "None", [1], {"a": 1})}) == 8


def test_inputs_count_by_name_and_value_and_not_as_config() -> None:
    variants = [({}, {"a": "1"}), ({}, {"b": "1"}), ({}, {"a": "2"}), ({"a": "1"}, {}), ({}, {})]
    assert len({fingerprint(config, inputs) for config, inputs in variants}) == 5


def test_enum_is_its_value() -> None:
    assert identity({"c": Colour.red}) == {"c": "red"}


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        ({1, 2}, "sorted list"),
        (Path("x"), "Paths are not identity"),
        (len, "name of the function"),
        (float("nan"), "finite"),
        ({1: "a"}, "string keys"),
        (b"bytes", "Use dataclasses"),
        (object(), "Use dataclasses"),
    ],
)
def test_what_has_no_stable_form_is_refused_with_its_key_and_a_hint(value: Any, hint: str) -> None:
    with pytest.raises(TypeError, match=rf"config\.train\.x.*{hint}"):
        identity({"train": {"x": value}})


def test_equal_in_another_process_with_another_hash_seed() -> None:
    code = (
        "from conf.schema import TrainConfig; from workflows.fingerprint import fingerprint;"
        "print(fingerprint({'train': TrainConfig(epochs=1, lr=0.1), 'z': {'b': 1, 'a': 2}}, {'y': '1', 'x': '2'}))"
    )
    here = fingerprint({"z": {"a": 2, "b": 1}, "train": TrainConfig(epochs=1, lr=0.1)}, {"x": "2", "y": "1"})
    root = Path(__file__).parents[2]
    for seed in ("1", "2"):
        env = {"PYTHONHASHSEED": seed, "PYTHONPATH": str(root)}
        other = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
        assert other.stdout.strip() == here
