"""The learner: codes from features and weak tags, round by round (paper: docs/notation.md).

Statistics in, statistics out; nothing here knows of files or of Faiss.
"""
