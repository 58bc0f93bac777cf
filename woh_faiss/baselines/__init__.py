"""Methods that WOH is compared with, each as its paper and its published code have it.

Deviations are named in each module. Not needed by an index.
"""
