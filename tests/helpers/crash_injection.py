"""A child that is killed at one of its steps, and which of them to try."""

import os
import signal
import tempfile
from itertools import pairwise

from lengths import LENGTH


def deadly(names):
    """Numbers of the steps to die at: of all, or but one of each two between which nothing is written.

    Those two are "after" one step and "before" the next. Around COMMIT, and at full length, it is all.
    """
    pairs = enumerate(pairwise(names))
    alike = {number for number, (a, b) in pairs if a.startswith("after ") and b.startswith("before ")}
    return [
        number
        for number, name in enumerate(names)
        if LENGTH >= 1 or number not in alike or name == "after COMMIT"
    ]


def steps_of(work, install):
    """The names of the steps of `work`, which a child does; see `die_at`."""
    with tempfile.TemporaryFile("w+") as log:
        assert not die_at(-1, work, lambda _: install(lambda name: print(name, file=log, flush=True)))
        log.seek(0)
        return log.read().splitlines()


def die_at(step, work, install):
    """Run `work` in a child that is killed at its step number `step`; False if it had fewer steps.

    `install` gets the function that is to be called, with whatever, at every step.
    """
    child = os.fork()
    if child == 0:
        seen = 0

        def on_step(*_given):
            nonlocal seen
            if seen == step:
                os.kill(os.getpid(), signal.SIGKILL)
            seen += 1

        install(on_step)
        try:
            work()
        except BaseException:
            os._exit(1)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)
