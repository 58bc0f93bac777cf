"""A child that is killed at one of its steps."""

import os
import signal


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
