"""A live line on a terminal that what is logged and printed stays above; plain lines elsewhere."""

import os
import pty
import re
import subprocess
import sys

PROGRAM = """
import logging, sys, time
from workflows.live import StderrHandler
from workflows.progress import Progress
logging.basicConfig(level=logging.INFO, format="%(message)s", handlers=[StderrHandler()])
with Progress("extract", 3, "shards") as progress:
    for done in range(4):
        progress(done)
        logging.getLogger("x").info("logged %d", done)
        print("printed by a worker", done, file=sys.stderr)
        time.sleep(0.3)
"""


def test_on_a_terminal_a_line_is_redrawn_below_whole_lines_of_others() -> None:
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        stderr=slave,
        stdout=slave,
        env=os.environ | {"TERM": "xterm", "COLUMNS": "100"},
    )
    os.close(slave)
    said = b""
    while True:
        try:
            read = os.read(master, 1 << 16)
        except OSError:  # the other end is closed
            break
        said += read
    os.close(master)
    assert process.wait() == 0
    text = said.decode()
    assert re.search(r"extract .*1/3.*shards", text), text
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "\r", text)
    lines = [re.split("\r", line)[-1] or line.strip("\r").split("\r")[-1] for line in plain.split("\n")]
    for number in range(4):
        assert f"logged {number}" in lines and f"printed by a worker {number}" in lines, lines


def test_elsewhere_there_are_plain_lines_only() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert "\x1b" not in done.stderr and "\r" not in done.stderr
    assert re.search(r"^extract: 3/3 shards, [\d.]+ shards/s$", done.stderr, re.MULTILINE)
    assert done.stderr.count("extract:") == 1  # it took less than thirty seconds
