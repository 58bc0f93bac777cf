"""`WOHIndex`: a store and a learner together. `index.py` has all that it can do."""
