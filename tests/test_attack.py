"""The attacks: they find what is broken on purpose, and refuse to work where they would find nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def attack(checkout, work, *arguments):
    command = [sys.executable, ROOT / "tests" / "attack", "--checkout", checkout, "--work", work, *arguments]
    return subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=300, check=False)


MEMORY = Path("/dev") / "shm"


@pytest.mark.skipif(not os.access(MEMORY, os.W_OK), reason="there is no /dev/shm to write to")
def test_a_folder_in_memory_is_refused():
    with tempfile.TemporaryDirectory(dir=MEMORY) as work:
        done = attack(ROOT, work, "--minutes", "0.01")
    assert done.returncode == 1
    assert "is on a disk" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("broken", "only", "found"),
    [
        ("WOHIndex.add = lambda self, *given, **options: None", "kills", "other ids than were given"),
    ],
)
def test_what_is_broken_on_purpose_is_found(tmp_path, broken, only, found):
    checkout = tmp_path / "checkout"
    for name in ("woh_faiss", "cli"):
        shutil.copytree(ROOT / name, checkout / name)
    with (checkout / "woh_faiss" / "__init__.py").open("a") as file:
        file.write(f"\nfrom woh_faiss import WOHIndex\n\n{broken}\n")
    work = ROOT / ".attack" / f"test-{os.getpid()}"
    try:
        done = attack(checkout, work, "--minutes", "2", "--seed", "1", "--only", only, "--stop")
    finally:
        shutil.rmtree(work, ignore_errors=True)
    assert done.returncode == 1, done.stdout + done.stderr
    assert found in done.stdout
