"""Numbers and names that pages state as `{{ name }}`, computed from the repository. Knows no page.

A number in the text comes from the thing it counts, so it cannot go stale; an unknown name fails the build.
"""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PATTERN = re.compile(r"\{\{ *(\w+) *\}\}")


def facts() -> dict[str, str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    repository = project["urls"]["Repository"]
    return {
        "repository": repository,
        "repository_name": repository.rsplit("/", 1)[-1],
        "num_recorded_runs": str(len(list((ROOT / "tests" / "data" / "vllm_traces").glob("*.json")))),
    }


def replace(text: str, known: dict[str, str]) -> str:
    """Put facts in the place of `{{ name }}`; KeyError names one that nobody computes."""
    return PATTERN.sub(lambda match: known[match[1]], text)


def setup(app):
    known = facts()

    def on_source_read(app, docname, source):
        if docname.startswith("book/"):
            source[0] = replace(source[0], known)

    app.connect("source-read", on_source_read)
    return {"version": "1", "parallel_read_safe": True}
