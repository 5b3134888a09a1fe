"""The half of ddiag that lives inside a training process: it records, and must never be noticed.

Reading order: ``bootstrap/sitecustomize.py`` (every Python process of the job passes it) -> ``imports`` (waits for
torch) -> ``activate`` (waits for a sign of training) -> ``recorder`` (what hooks call) -> ``hooks/`` (where torch is
observed). ``door`` is the only place that catches everything; ``patches`` puts back what was replaced.
"""
