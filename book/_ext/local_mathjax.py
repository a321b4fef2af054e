"""Serves MathJax from the book itself. Knows the PyPI package that carries it; not the formulas.

Takes the 2.2 MB that pages load out of the package's 24: the component, its fonts, and the extensions that
\\boldsymbol, \\cancel and others load when first used (without them one such command leaves a page raw).
Where the package is missing the pages fall back on the public network copy, and the build says so.
"""

import importlib.util
import shutil
from pathlib import Path

from sphinx.util import logging

PACKAGE = "sphinx-mathjax-offline"  # the importable name has hyphens too
PARTS = ("tex-chtml.js", "output/chtml/fonts", "input/tex/extensions")
log = logging.getLogger(__name__)


def packaged_mathjax() -> Path | None:
    """The folder that holds tex-chtml.js, or None where the package is not installed."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        return None
    found = sorted(Path(spec.origin).parent.glob("**/tex-chtml.js"))
    return found[0].parent if found else None


def use_local(app, config) -> None:
    if packaged_mathjax() is None:
        log.info("%s is not installed: formulas will be loaded from the network", PACKAGE)
    else:
        config.mathjax_path = "mathjax/tex-chtml.js"


def copy_parts(app, exception) -> None:
    source = packaged_mathjax()
    if exception is not None or source is None or app.builder.format != "html":
        return
    target = Path(app.outdir) / "_static" / "mathjax"
    for part in PARTS:
        if (source / part).is_dir():
            shutil.copytree(source / part, target / part, dirs_exist_ok=True)
        else:
            target.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source / part, target / part)


def setup(app) -> dict[str, bool]:
    app.connect("config-inited", use_local)
    app.connect("build-finished", copy_parts)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
