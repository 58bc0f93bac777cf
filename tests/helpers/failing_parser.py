"""Python's parser as version 3.11 has it now and then, where other threads use it: cpython issue 106905."""

import ast


class FailingParser:
    """`ast.literal_eval`, some of whose calls fail."""

    def __init__(self, failures):
        self.failures, self.calls, self.real = failures, 0, ast.literal_eval

    def __call__(self, text):
        self.calls += 1
        if self.calls - 1 in self.failures:
            raise SystemError("AST constructor recursion depth mismatch (before=54, after=38)")
        return self.real(text)
