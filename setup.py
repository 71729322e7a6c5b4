"""Builds the extension `dblp._fastpath`; everything else about the package is in pyproject.toml.

`DBLP_EXTENSIONS` says what happens without it:

    auto     (default) build it; where that fails, warn and go on with the Python twin
    require  build it; a failure is an error
    skip     do not build it
"""

import glob
import os
import sys

from setuptools import Extension, setup

try:
    from Cython.Build import cythonize
except ImportError:
    cythonize = None

MODES = ("auto", "require", "skip")

# Never fast-math: sums must be the same on every rank.  For the same reason a * b + c must not be
# contracted into one rounding on some processors and not on others.  Instructions beyond the
# baseline are chosen at run time, so there is no -march.
UNIX_FLAGS = ["-O3", "-ffp-contract=off"]
MSVC_FLAGS = ["/O2", "/fp:precise"]

SOURCE = "dblp/_fastpath.pyx"


def mode():
    """The value of DBLP_EXTENSIONS, checked."""
    value = os.environ.get("DBLP_EXTENSIONS", "") or "auto"
    if value not in MODES:
        sys.exit(f"DBLP_EXTENSIONS is {value!r}: choose one of {', '.join(MODES)}")
    return value


def extension():
    """The extension, from its Cython source."""
    return Extension(
        "dblp._fastpath",
        sources=[SOURCE],
        include_dirs=["dblp", "dblp/csrc"],
        depends=sorted(glob.glob("dblp/csrc/*.*") + glob.glob("dblp/*.pxd")),
        extra_compile_args=MSVC_FLAGS if sys.platform == "win32" else UNIX_FLAGS,
    )


def extensions():
    """What to build.  A failing step from Cython to C is caught here, one from C by setuptools."""
    chosen = mode()
    if chosen == "skip":
        return []
    try:
        if cythonize is None:
            raise RuntimeError("Cython is not installed")
        found = cythonize([extension()], language_level=3)
    except Exception as error:
        if chosen == "require":
            raise
        print(
            f"warning: going on without the compiled fast path ({error}); the Python twin works "
            "but is far slower.  DBLP_EXTENSIONS=require makes this an error.",
            file=sys.stderr,
        )
        return []
    for built in found:
        # Here, as cythonize does not keep it.
        built.optional = chosen == "auto"
    return found


setup(ext_modules=extensions())
