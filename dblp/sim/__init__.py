"""Deterministic simulation in virtual time: a seed gives a scenario, a scenario gives a run.

`python -m dblp.sim --seed 7 --count 1000` runs a thousand of them; see docs/SIMULATION.md.
"""
