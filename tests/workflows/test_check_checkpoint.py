"""The comparison with a published draft: what is printed, and when it ends with 1 or 2."""

import json
from pathlib import Path
from typing import Any

import pytest

from actors.draft_explained import explain
from actors.draft_formats import write_flat, write_speculators
from actors.verifier import read_verifier, safetensors_header
from conf.schema import Naming
from tests.tiny_draft import rewrite_tensors, write_tiny_draft
from workflows.check_checkpoint import BUNDLED, main, read_reference


@pytest.fixture
def flat(tiny_llama: Path, tmp_path: Path) -> Path:
    write_tiny_draft(tmp_path / "draft", tiny_llama, norm_before_fc=False)
    verifier = read_verifier(tiny_llama)
    write_flat(tmp_path / "draft", verifier, tmp_path / "flat", Naming.midlayer, 3)
    write_speculators(tmp_path / "draft", verifier, tmp_path / "speculators", 3)
    return tmp_path / "flat"


def edit(folder: Path, **changes: Any) -> None:
    """Set keys of config.json; None removes one."""
    config = json.loads((folder / "config.json").read_text()) | changes
    config = {key: value for key, value in config.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(config))


def reference_of(flat: Path, file: Path, **tensors: list[int]) -> Path:
    """A reference file that describes `flat`, with these tensors changed."""
    shapes = {name: entry["shape"] for name, entry in safetensors_header(flat / "model.safetensors").items()}
    config = json.loads((flat / "config.json").read_text())
    file.write_text(json.dumps({"source": "ours", "config": config, "tensors": shapes | tensors}))
    return file


def test_the_bundled_reference_is_the_shape_that_its_config_gives() -> None:
    """The head_dim of 128 that a verifier's config does not give: q_proj has 8192 rows, not 7168 or 4096."""
    from actors.draft_shapes import normalised, shapes_of

    found = read_reference("kimi_k2")
    named = {normalised(name): shape for name, shape in found.tensors.items()}
    assert named == shapes_of(found.flags)
    assert named["layers.0.self_attn.q_proj.weight"] == [8192, 14336]


def test_a_draft_equals_its_own_config_in_both_formats(flat: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for folder in (flat, flat.parent / "speculators"):
        assert main([str(folder)]) == 0
        printed = capsys.readouterr().out
        assert "layers.0.self_attn.q_proj.weight" in printed and "equal: " in printed and "\n! " not in printed


def test_a_differing_and_a_missing_tensor_end_in_1(flat: Path, capsys: pytest.CaptureFixture[str]) -> None:
    same = reference_of(flat, flat.parent / "same.json")
    assert main([str(flat), "--reference", str(same)]) == 0
    other = reference_of(flat, flat.parent / "other.json", **{"midlayer.self_attn.q_proj.weight": [128, 256]})
    capsys.readouterr()
    assert main([str(flat), "--reference", str(other)]) == 1
    line = next(x for x in capsys.readouterr().out.splitlines() if x.startswith("layers.0.self_attn.q_proj"))
    assert line.split("  ")[-1] == "differs" and "[128, 256]" in line
    rewrite_tensors(flat, lambda tensors: tensors.pop("norm.weight"))
    assert main([str(flat), "--reference", str(same)]) == 1
    assert "missing" in capsys.readouterr().out


def test_values_that_training_never_filled_end_in_1(flat: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rewrite_tensors(flat, lambda tensors: tensors["fc.weight"].fill_(float("nan")))
    assert main([str(flat)]) == 1
    assert "FAULT: fc.weight" in capsys.readouterr().out


def test_keys_that_differ_from_the_reference_are_shown_and_do_not_fail(
    flat: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    same = reference_of(flat, flat.parent / "same.json")
    edit(flat, norm_output=False)
    assert main([str(flat), "--reference", str(same)]) == 0
    assert "1 keys differ" in (printed := capsys.readouterr().out) and "norm_output" in printed


@pytest.mark.parametrize(
    ("changes", "key", "part"),
    [
        ({"norm_before_residual": None}, "norm_before_residual", "vLLM takes false here, and true in the speculators"),
        ({"eagle_aux_hidden_state_layer_ids": None}, "aux_layers", "the V2 runner (GPU) takes the verifier's default"),
        ({"rope_theta": None, "rope_parameters": None, "rope_scaling": None}, "rope", "vLLM takes 10000"),
        ({"eagle_aux_hidden_state_layer_ids": [1, 2, 3, 4], "eagle_config": {}}, "num_aux_hidden_states", "4 aux"),
    ],
)
def test_a_key_by_which_drafts_quietly_break_is_marked(
    changes: dict[str, Any], key: str, part: str, flat: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not any(reading.unsafe for reading in explain(flat))
    edit(flat, **changes)
    assert [reading.key for reading in explain(flat) if reading.unsafe] == [key]
    main([str(flat)])
    line = next(x for x in capsys.readouterr().out.splitlines() if x.startswith(f"! {key}"))
    assert part in line


def test_a_missing_head_dim_says_what_vllm_takes_instead(flat: Path) -> None:
    edit(flat, head_dim=None)
    found = next(reading for reading in explain(flat) if reading.key == "head_dim")
    assert (found.value, found.source) == (32, "missing") and "hidden_size / num_attention_heads" in found.remark


@pytest.mark.parametrize(
    ("content", "part"),
    [("{", "does not parse"), ('{"tensors": {}}', "has no key 'config'"), (None, "cannot be read")],
)
def test_a_reference_that_is_none_ends_in_2(
    content: str | None, part: str, flat: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "reference.json"
    if content is not None:
        file.write_text(content)
    assert main([str(flat), "--reference", str(file)]) == 2
    message = capsys.readouterr().err
    assert part in message and message.rstrip().endswith(f"or one of: {', '.join(BUNDLED)}.")


def test_a_folder_that_is_no_checkpoint_ends_in_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 2
    assert "Give a checkpoint folder" in capsys.readouterr().err
