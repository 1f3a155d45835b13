"""The pool of engines on a real Ray with 4 CPUs: what is kept, what goes, and what is said of a death."""

import gc
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray

from actors.draft_formats import write_flat
from actors.engine import DraftSpec, EngineSpec, Sampling
from actors.engine_pool import EnginePool
from actors.node_labels import ANYWHERE, Place
from actors.reservation import Reservation
from actors.verifier import read_verifier
from conf.schema import EngineConfig, EngineKind, Naming
from tests.tiny_draft import write_tiny_draft

PROMPT = [40, 41, 42]


def spec(verifier: Path, *, extra: dict[str, Any] | None = None, draft: DraftSpec | None = None, **more: Any) -> Any:
    config = EngineConfig(kind=EngineKind.fake, extra=extra or {}, **{"num_gpus": 0, "num_cpus": 1, **more})
    return EngineSpec(str(verifier), config, draft=draft)


@pytest.fixture
def pool(local_ray: None) -> Iterator[EnginePool]:
    # what an earlier test held is reported free a moment after it is gone; these tests use up to 3 of the 4 CPUs
    deadline = time.monotonic() + 5
    while ray.available_resources().get("CPU", 0) < 3 and time.monotonic() < deadline:
        gc.collect()  # a failed extraction's workers hang on handles in the cycles of its exception
        time.sleep(0.05)
    opened = EnginePool(Place(wait_s=0.1))
    yield opened
    opened.close()


def process(handle: Any) -> str:
    """What tells one engine from another."""
    return handle._actor._actor_id.hex()


def alive() -> set[str]:
    """Engines that run or start, from the control store: tests run without a dashboard."""
    actors = ray._private.state.actors().values()
    return {a["ActorID"] for a in actors if a["ActorClassName"] == "EngineActor" and a["State"] != "DEAD"}


def test_the_same_spec_gets_the_same_engine_with_its_counters(
    pool: EnginePool, tiny_llama: Path, tmp_path: Path
) -> None:
    write_tiny_draft(tmp_path / "draft", tiny_llama)
    write_flat(tmp_path / "draft", read_verifier(tiny_llama), tmp_path / "flat", Naming.layers, 3)
    drafting = spec(tiny_llama, draft=DraftSpec(str(tmp_path / "flat"), 3))
    with pool(drafting, name="one") as handle:
        first = process(handle)
        prompts = handle.render([[{"role": "user", "content": f"question {i}"}] for i in range(5)])
        done: list[tuple[int, int]] = []
        completions = handle.generate(
            prompts, Sampling(20), concurrency=2, progress=lambda n, total: done.append((n, total))
        )
        assert [c.prompt_ids for c in completions] == prompts
        counted = handle.counters()
        assert counted.drafts > 0
        assert handle.decode([completions[0].prompt_ids]) == ["<user>question 0\n<assistant>"]
    with pool(drafting, name="two") as handle:
        assert process(handle) == first and handle.counters() == counted
    with pool(spec(tiny_llama), name="plain") as handle:
        assert process(handle) != first


def test_an_engine_that_died_while_idle_is_replaced(pool: EnginePool, tiny_llama: Path) -> None:
    with pool(spec(tiny_llama), name="first") as handle:
        first = process(handle)
        actor = handle._actor
    ray.kill(actor)
    with pool(spec(tiny_llama), name="second") as handle:
        assert process(handle) != first
        assert len(handle.generate([PROMPT], Sampling(3))) == 1


def test_another_spec_takes_the_place_when_resources_are_short(pool: EnginePool, tiny_llama: Path) -> None:
    big, other = spec(tiny_llama, num_cpus=3), spec(tiny_llama, num_cpus=3, max_model_len=999)
    with pool(big, name="big") as handle:
        first = process(handle)
    with pool(other, name="other") as handle:
        assert len(handle.generate([PROMPT], Sampling(3))) == 1
    with pool(big, name="big") as handle:
        assert process(handle) != first


def test_an_engine_is_prepared_when_there_is_room_and_not_lost_to_one_that_comes_back(
    pool: EnginePool, tiny_llama: Path
) -> None:
    """As convert does: both formats are started at once, and used one after the other."""
    # of no size, so that there is room whatever the test before still holds
    first, second = spec(tiny_llama, num_cpus=0), spec(tiny_llama, num_cpus=0, max_model_len=999)
    before = alive()
    pool.prepare(first, name="first")
    pool.prepare(second, name="second")
    pool.prepare(second, name="second")
    started = alive() - before
    assert len(started) == 2
    used = set()
    for one in (first, second):
        with pool(one, name="used") as handle:
            used.add(process(handle))
    assert used == started


def test_nothing_is_prepared_where_there_is_no_room(pool: EnginePool, tiny_llama: Path) -> None:
    with pool(spec(tiny_llama, num_cpus=3), name="big"):
        before = alive()
        pool.prepare(spec(tiny_llama, num_cpus=2), name="waiting")
        assert alive() == before


def test_two_engines_that_both_want_the_last_place_get_it_one_after_the_other(
    pool: EnginePool, tiny_llama: Path
) -> None:
    """Both asked for at once, before Ray reports that the first took it: seen on one GPU."""
    first, second = spec(tiny_llama, num_cpus=3), spec(tiny_llama, num_cpus=3, max_model_len=999)
    before = alive()
    pool.prepare(first, name="first")
    pool.prepare(second, name="second")
    assert len(alive() - before) == 1
    for one in (first, second):
        with pool(one, name="used") as handle:
            assert len(handle.generate([PROMPT], Sampling(3))) == 1


def test_a_place_that_other_work_holds_is_an_error_that_says_so(pool: EnginePool, tiny_llama: Path) -> None:
    other = Reservation({"CPU": 2}, ANYWHERE)
    assert other.granted(5)
    try:
        with (
            pytest.raises(RuntimeError, match=r"big needs 3 CPUs on one node, and other work has held them for 0.5 s"),
            pool(spec(tiny_llama, num_cpus=3, start_timeout_s=0.5), name="big"),
        ):
            pass
    finally:
        other.release()
    with pool(spec(tiny_llama, num_cpus=3), name="big") as handle:  # nothing of the refused one is held
        assert len(handle.generate([PROMPT], Sampling(3))) == 1


@pytest.mark.parametrize(("key", "value"), [("num_gpus", 1), ("num_cpus", 64)])
def test_an_engine_that_fits_no_node_is_refused_with_the_key(
    pool: EnginePool, tiny_llama: Path, key: str, value: int
) -> None:
    with (
        pytest.raises(RuntimeError, match=rf"big needs .* on one node.*cluster.wait_s.*engine\.{key}"),
        pool(spec(tiny_llama, **{key: value}), name="big"),
    ):
        pass


def test_an_engine_that_dies_is_an_error_that_says_what_to_do_and_the_pool_goes_on(
    pool: EnginePool, tiny_llama: Path
) -> None:
    mortal = spec(tiny_llama, extra={"die_on_token": 99})
    with (
        pytest.raises(RuntimeError, match=r"the engine mortal died[\s\S]*out of memory.*engine\.kv_cache_gib"),
        pool(mortal, name="mortal") as handle,
    ):
        handle.generate([PROMPT, [99]], Sampling(3))
    with pool(mortal, name="again") as handle:
        assert len(handle.generate([PROMPT], Sampling(3))) == 1


def test_an_engine_that_does_not_start_is_an_error_that_says_where_to_look(
    pool: EnginePool, tiny_llama: Path, tmp_path: Path
) -> None:
    absent = spec(tiny_llama, draft=DraftSpec(str(tmp_path), 3))
    with (
        pytest.raises(RuntimeError, match=r"the engine broken did not start.*[\s\S]*engine\.extra"),
        pool(absent, name="broken"),
    ):
        pass
    with pool(spec(tiny_llama), name="fine") as handle:
        assert handle.describe()["engine"] == "fake"


def test_an_error_of_the_step_ends_its_engine(pool: EnginePool, tiny_llama: Path) -> None:
    with pytest.raises(KeyError), pool(spec(tiny_llama), name="a"):
        raise KeyError
    with pool(spec(tiny_llama), name="b") as handle:
        assert len(handle.generate([PROMPT], Sampling(3))) == 1


def test_close_ends_idle_and_prepared_engines(local_ray: None, tiny_llama: Path) -> None:
    before = alive()
    opened = EnginePool(Place(wait_s=0.1))
    with opened(spec(tiny_llama), name="used"):
        pass
    opened.prepare(spec(tiny_llama, max_model_len=999), name="prepared")
    assert len(alive() - before) == 2
    opened.close()
    assert alive() <= before
    assert ray.is_initialized()
