"""What every attack needs: a checkout put first, work in children that are bounded, counts, kept failures."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import pickle
import random
import resource
import runpy
import select
import shutil
import signal
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

#: Seconds any one command may take, memory it may take beyond what is loaded, and where the system steps in.
PATIENCE, MEMORY, CEILING = 30, 512 << 20, 4 << 30
#: File systems on which fsync takes no time, so that the worst faults never show.
WITHOUT_DISK = {"tmpfs", "ramfs", "hugetlbfs"}
#: Failures of one kind whose folders are kept.
KEPT = 3


class Failure(Exception):  # noqa: N818 - of a promise, told by a count
    """The product broke a promise: its kind, and what was seen."""

    def __init__(self, kind: str, seen: str = "") -> None:
        super().__init__(f"{kind}: {seen}" if seen else kind)
        self.kind, self.seen = kind, seen


class Attack:
    """One attack: its time, its counts, and the folders of what failed."""

    def __init__(self, name: str, work: Path, seed: int, seconds: float, run: int | None, stop: bool) -> None:
        self.name, self.seed, self.only_run, self.stop = name, seed, run, stop
        self.folder = work / f"{name}.{os.getpid()}"  # two may attack at once
        self.kept = work / "kept"
        self.runs, self.counts, self.failures = 0, Counter[str](), Counter[str]()
        self._end, self._said = time.monotonic() + seconds, time.monotonic()
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)

    def rounds(self) -> Iterator[tuple[int, random.Random]]:
        """(number, its random numbers) of each run until the time is up; `--run N` does that one only."""
        number = 0 if self.only_run is None else self.only_run
        while True:
            yield number, random.Random(f"{self.seed} {self.name} {number}")  # noqa: S311 - no secret
            self.runs += 1
            number += 1
            if self.only_run is not None or time.monotonic() > self._end or (self.stop and self.failures):
                return
            if time.monotonic() - self._said > 10:
                print(self.line(), flush=True)
                self._said = time.monotonic()

    def fail(self, failure: Failure, number: int, folder: Path, story: str = "") -> None:
        """Count a failure; of the first ones of its kind keep the folder and what was done."""
        self.failures[failure.kind] += 1
        if self.failures[failure.kind] > KEPT:
            return
        kept = self.kept / f"{self.name}-{self.seed}-{number}"
        shutil.rmtree(kept, ignore_errors=True)
        kept.mkdir(parents=True)
        again = f"python tests/attack --only {self.name} --seed {self.seed} --run {number}"
        (kept / "why.txt").write_text(f"{failure}\n\n{again}\n\n{story}\n", errors="replace")
        if folder.exists():  # as it is, whatever is in it: a plain copy would wait at a FIFO
            with contextlib.suppress(OSError):
                shutil.move(folder, kept / folder.name)
        last = story.splitlines()[-1:] or [""]
        print(f"{self.name}: FAILURE {failure} ({last[0]})\n    kept in {kept}; {again}", flush=True)

    def line(self) -> str:
        """The counts so far, on one line."""
        outcomes = ", ".join(f"{kind} {count}" for kind, count in sorted(self.counts.items()))
        failures = ", ".join(f"{kind} {count}" for kind, count in self.failures.most_common())
        return f"{self.name}: {self.runs} runs; {outcomes or 'nothing'}; failures: {failures or 'none'}"


# ---- the checkout ------------------------------------------------------------------------------------


def use(checkout: Path, work: Path) -> None:
    """Import the package, and the command, of this checkout and of no other."""
    links = work / "links"
    links.mkdir(parents=True, exist_ok=True)
    link = links / "woh_faiss_cli"
    link.unlink(missing_ok=True)
    link.symlink_to(checkout / "cli")
    sys.path[:0] = [str(checkout), str(links)]
    package = importlib.import_module("woh_faiss")
    found = Path(package.__file__ or "").resolve().parent.parent
    if found != checkout:
        raise SystemExit(f"woh_faiss was imported from {found}, expected {checkout}")
    with contextlib.suppress(ImportError):  # what a first use imports is no file's memory
        import pyarrow.parquet  # noqa: F401
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        for argv in (["query", "--id", "1"], ["verify"], ["add", "x.npz"], ["info"], ["build", "x.npz"]):
            sys.argv = ["woh-index", *argv, "--index", str(work / "nothing")]
            with contextlib.suppress(SystemExit):
                runpy.run_module("woh_faiss_cli", run_name="__main__")
    _first_use(work / "first.woh")


def _first_use(folder: Path) -> None:
    """Do all that children will do once here, so that they need not import and set up what it needs."""
    from life import Operation, perform
    from model import CONFIG, features, look

    from woh_faiss import WOHIndex

    def create() -> None:
        with WOHIndex.create(folder, **CONFIG) as index:
            index.update(*features(1, 30))

    removed(folder)
    operations = [Operation("add", 2, (50,)), Operation("remove", 0, (50,)), Operation("compact")]
    operations += [Operation("update", 3, tuple(range(60, 70))), Operation("rollback")]
    uses: list[Callable[[], Any]] = [create, *(partial(perform, folder, what) for what in operations)]
    for use_once in (*uses, lambda: look(folder), lambda: WOHIndex.verify(folder)):
        with contextlib.suppress(Exception):  # what does not work is told by an attack
            use_once()
    removed(folder)


def disk_of(folder: Path) -> str:
    """Type of the file system that a folder is on."""
    device = folder.stat().st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields = line.split()
        if fields[2] == wanted:
            return fields[fields.index("-") + 1]
    return "unknown"


# ---- bounded children --------------------------------------------------------------------------------


class Ended(NamedTuple):
    """How a child ended: "done", "raised", "hang" or "crash"; its value or error, and its memory."""

    how: str
    value: Any
    peak: int


def spawn(work: Callable[[], Any], seconds: float = PATIENCE) -> tuple[int, int]:
    """(process id, descriptor its answer comes from) of a child that does `work`."""
    reader, writer = os.pipe()
    sys.stdout.flush()
    child = os.fork()
    if child:
        os.close(writer)
        return child, reader
    try:
        os.close(reader)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.setitimer(signal.ITIMER_REAL, seconds)
        resource.setrlimit(resource.RLIMIT_AS, (CEILING, CEILING))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        try:
            answer = pickle.dumps((True, work()))
        except BaseException as error:
            text = "".join(traceback.format_exception(error))
            answer = pickle.dumps((False, (type(error).__name__, is_refusal(error), str(error), text)))
        with os.fdopen(writer, "wb") as pipe:
            pipe.write(answer)
    finally:
        os._exit(0)


def wait(child: int, reader: int) -> Ended:
    """Wait for a child of `spawn`."""
    with os.fdopen(reader, "rb") as pipe:
        said = pipe.read()
    _, status, usage = os.wait4(child, 0)
    peak = usage.ru_maxrss << 10
    if os.WIFSIGNALED(status):
        hang = os.WTERMSIG(status) == signal.SIGALRM
        return Ended("hang" if hang else "crash", f"signal {os.WTERMSIG(status)}", peak)
    if not said:
        return Ended("crash", f"ended with {os.WEXITSTATUS(status)} without an answer", peak)
    fine, value = pickle.loads(said)  # noqa: S301 - our own child's
    return Ended("done" if fine else "raised", value, peak)


def forked(work: Callable[[], Any], seconds: float = PATIENCE) -> Ended:
    """What `work` does in a child."""
    return wait(*spawn(work, seconds))


def is_refusal(error: BaseException) -> bool:
    """Whether it is one of the errors that the package promises."""
    from woh_faiss.errors import WOHError

    return isinstance(error, WOHError)


class Ran(NamedTuple):
    """What a command did."""

    code: int
    out: str
    err: str
    peak: int
    argv: tuple[str, ...]


def command(*argv: str, seconds: float = PATIENCE, cwd: Path | None = None) -> Ran:
    """`woh-index ARGV` in a child; Failure if it hangs, crashes, shows a traceback or takes too much."""
    out, err = os.memfd_create("out"), os.memfd_create("err")

    def work() -> int:
        os.dup2(out, 1), os.dup2(err, 2)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        sys.stdin = open(0, closefd=False)  # noqa: SIM115 - the child's own, until it ends
        sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
        sys.argv = ["woh-index", *argv]
        warnings.simplefilter("ignore", ResourceWarning)
        if cwd is not None:
            os.chdir(cwd)
        try:
            runpy.run_module("woh_faiss_cli", run_name="__main__")
            code: Any = 0
        except SystemExit as end:
            code = end.code or 0
        except BaseException:
            traceback.print_exc()
            code = 70
        sys.stdout.flush(), sys.stderr.flush()
        return code if isinstance(code, int) else 1

    before = _resident()
    try:
        ended = forked(work, seconds)
        said = []
        for handle in (out, err):
            size = min(os.fstat(handle).st_size, 4 << 20)
            said.append(os.pread(handle, size, 0).decode(errors="surrogateescape"))
    finally:
        os.close(out), os.close(err)
    what = f"woh-index {' '.join(argv)}"
    if ended.how in ("hang", "crash"):
        raise Failure(ended.how, f"{what}: {ended.value}; {said[1][-300:]!r}")
    if ended.how == "raised":
        raise Failure("crash", f"{what}: {ended.value[3][-300:]}")
    if "Traceback (most recent call last)" in said[1] or ended.value not in (0, 1, 2):
        raise Failure("traceback", f"{what}: {' | '.join(said[1].strip().splitlines()[-4:])[-400:]}")
    if ended.value and argv[0] != "verify":  # which tells its faults on stdout, a line each
        errors = [line for line in said[1].splitlines() if line.startswith("Error:")]
        after = said[1].splitlines()[-1:]
        if len(errors) != 1 or (ended.value == 1 and after != errors):
            raise Failure("not one line", f"{what}: {said[1][-300:]!r}")
    if ended.peak - before > MEMORY:
        raise Failure("memory", f"{what}: {(ended.peak - before) >> 20} MiB")
    return Ran(ended.value, *said, ended.peak, argv)


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


# ---- files -------------------------------------------------------------------------------------------


def contents(folder: Path) -> dict[str, Any]:
    """Every name below a folder: its bytes, the place a link points to, or what else it is."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = ("link", str(path.readlink()))
        elif path.is_file():
            size = path.stat().st_size
            found[name] = path.read_bytes() if size < 64 << 20 else ("huge", size)
        else:
            found[name] = ("other", path.lstat().st_mode)
    return found


def copied(source: Path, to: Path) -> Path:
    """A copy of an index folder in place of whatever is at `to`."""
    removed(to)
    return Path(shutil.copytree(source, to, symlinks=True))


def removed(folder: Path) -> None:
    """Nothing is at `folder` any more."""
    if folder.is_symlink():
        folder.unlink()
    shutil.rmtree(folder, ignore_errors=True)


def readable(handle: int, seconds: float) -> bool:
    """Whether something came within so many seconds."""
    return bool(select.select([handle], [], [], seconds)[0])
