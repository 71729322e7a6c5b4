"""Benches of `dblp`: what the transport reaches, beside kernel TCP and gloo in the same run.

`python -m bench list` names the cases, `python -m bench run CASE` runs one.
"""
