"""Experiment files (``riseml.yml``): read, planned as jobs of our launcher, and run on a machine.

``document`` and ``schema`` read a file, ``plan`` says what it comes to; all three are pure.
``director`` runs the plan; each line is one job, in a process of its own.
"""
