"""The cases of `python -m bench`: modules with `run(settings, result)`, titled by line one."""
