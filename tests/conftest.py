"""What all tests share: both fast paths, and Hypothesis without a clock."""

from __future__ import annotations

import importlib
import os
from types import ModuleType

import pytest
from hypothesis import settings

# A busy machine is no reason to fail, so examples have no deadline.
settings.register_profile("dblp", deadline=None)
settings.load_profile("dblp")

FASTPATH_MODULES = {"compiled": "dblp._fastpath", "python": "dblp._fastpath_py"}


def compiled_is_required() -> bool:
    """Whether a missing extension is a failure: in CI, or where the build had to make it."""
    return bool(os.environ.get("CI")) or os.environ.get("DBLP_EXTENSIONS") == "require"


@pytest.fixture(scope="session", params=sorted(FASTPATH_MODULES))
def fastpath(request: pytest.FixtureRequest) -> ModuleType:
    """The fast path module, once compiled and once as the Python twin.

    The scope is the session, as Hypothesis does not reset function fixtures between its examples.
    """
    try:
        return importlib.import_module(FASTPATH_MODULES[request.param])
    except ImportError as error:
        if request.param == "compiled" and not compiled_is_required():
            pytest.skip(f"the extension is not built: {error}")
        raise
