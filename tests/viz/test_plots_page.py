"""A stored picture on a page of the book: its alt text and width arrive, a widget does not. Knows Sphinx."""

import json
import re
import subprocess
import sys
from base64 import b64encode
from pathlib import Path

import pytest
import yaml

from mini_vllm.viz import plots
from mini_vllm.viz.widgets import VIEW
from tests.viz.player_traces import small_trace
from tools.notebook_format import NOTEBOOK_METADATA

pytest.importorskip("myst_nb", reason="Jupyter Book is not installed")
ROOT = Path(__file__).resolve().parents[2]
ALT = 'Three requests: "A" runs & two wait'
CONF = """
import sys
sys.path.insert(0, {ext!r})
extensions = ["myst_nb", "output_alt"]
nb_execution_mode = "off"
nb_ipywidgets_js = {ipywidgets_js!r}
nb_mime_priority_overrides = {overrides!r}
"""


def test_alt_text_and_width_reach_the_page_and_the_widget_does_not(tmp_path):
    data, metadata = plots.queue_lengths(small_trace(), alt=ALT)._repr_mimebundle_()
    data = {VIEW: {"model_id": "0123"}, **data, "image/png": b64encode(data["image/png"]).decode()}
    output = {"output_type": "display_data", "data": data, "metadata": metadata}
    cells = [
        {"cell_type": "markdown", "id": "a", "metadata": {}, "source": "# A page"},
        {"cell_type": "code", "id": "b", "metadata": {}, "source": "run", "execution_count": 1, "outputs": [output]},
    ]
    page = {"cells": cells, "metadata": NOTEBOOK_METADATA, "nbformat": 4, "nbformat_minor": 5}
    (tmp_path / "index.ipynb").write_text(json.dumps(page))
    book = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))["sphinx"]["config"]
    conf = CONF.format(
        ext=str(ROOT / "book" / "_ext"),
        ipywidgets_js=book["nb_ipywidgets_js"],
        overrides=[tuple(row) for row in book["nb_mime_priority_overrides"]],
    )
    (tmp_path / "conf.py").write_text(conf)
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "-b", "html", str(tmp_path), str(tmp_path / "html")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "html" / "index.html").read_text(encoding="utf-8")
    (image,) = re.findall(r"<img[^>]*_images[^>]*>", page)
    assert 'alt="Three requests: &quot;A&quot; runs &amp; two wait"' in image
    assert "width: 600px" in image and "height" not in image, "a height would distort it on a phone"
    assert "model_id" not in page and "widget" not in page.lower()
