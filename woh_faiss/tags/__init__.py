"""Tags: lists of them, the vocabulary that grows, vectors of words."""
