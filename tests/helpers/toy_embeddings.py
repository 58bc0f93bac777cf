"""An embedding model for tests: a text's words decide its direction, and nothing else."""

import re
import zlib
from pathlib import Path

import numpy as np

D = 24


def embed(text):
    """The mean of a random direction a word, as a list."""
    words = text.split() or [""]
    rows = [np.random.default_rng(zlib.crc32(word.encode())).normal(size=D) for word in words]
    return np.mean(rows, axis=0).tolist()


def shown(language):
    """The Python block of docs/stacks.md about LangChain or Haystack."""
    page = (Path(__file__).parents[2] / "docs" / "stacks.md").read_text()
    (block,) = re.findall(
        r"```python\n(.*?)```", page.split(f"\n### {language}\n")[1].split("\n### ")[0], re.DOTALL
    )
    return block


TOPICS = {
    "sea": ["wave", "salt", "boat", "gull"],
    "hill": ["snow", "peak", "rope", "goat"],
    "city": ["tram", "neon", "crowd", "tower"],
}


def texts(n, seed=0):
    """n made-up (text, topic); every text has words of its topic and a number of its own."""
    rng = np.random.default_rng(seed)
    topics = rng.choice(list(TOPICS), n)
    return [
        (" ".join([*rng.choice(TOPICS[topic], 4), f"n{seed}.{i}"]), str(topic))
        for i, topic in enumerate(topics)
    ]
