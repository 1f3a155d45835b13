"""SIGTERM in a patient stretch: it ends by itself, or with the grace."""

import os
import signal

import pytest

from workflows.stop import EXIT, Stop


def term() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def test_a_patient_stretch_sees_it_and_leaves_at_its_end() -> None:
    done = []
    with pytest.raises(SystemExit) as left, Stop(60).patiently() as stopping:
        assert not stopping()
        term()
        assert stopping()
        done.append("what was in flight")
    assert done and left.value.code == EXIT == 143


def test_when_the_grace_is_over_it_leaves_from_within() -> None:
    now = [0.0]
    with pytest.raises(SystemExit), Stop(60, clock=lambda: now[0]).patiently() as stopping:
        term()
        now[0] = 59.0
        assert stopping()
        now[0] = 61.0
        stopping()
        raise AssertionError("stayed")


def test_elsewhere_it_leaves_at_once_with_the_same_code() -> None:
    before = signal.getsignal(signal.SIGTERM)
    try:
        stop = Stop(60)
        stop.leave_when_asked()
        with pytest.raises(SystemExit) as left, stop.one_exit_code():
            try:
                term()
            except SystemExit:
                raise SystemExit(1) from None  # as ray.get does
        assert left.value.code == EXIT
    finally:
        signal.signal(signal.SIGTERM, before)


def test_another_exit_keeps_its_code() -> None:
    with pytest.raises(SystemExit) as left, Stop(60).one_exit_code():
        raise SystemExit(7)
    assert left.value.code == 7


def test_an_undisturbed_stretch_goes_on_and_the_old_handler_comes_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with Stop(60).patiently() as stopping:
        assert not stopping()
    assert signal.getsignal(signal.SIGTERM) is before
