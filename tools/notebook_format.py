"""How a notebook is stored, so that running it twice gives the same bytes. Knows the format only.

Kept: sources, tags, outputs. Fixed: cell ids, kernel names. Dropped: times, widget state, editor
settings, tracebacks. Refused: addresses, paths of this machine, text on stderr.
"""

import hashlib
import re
import tempfile
from pathlib import Path

IGNORE_TAG = "nbval-ignore-output"
KEPT_CELL_METADATA = ("tags", "mystnb")
OURS = "every_step"  # our key in the notebook's metadata
NOTEBOOK_METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {
        "file_extension": ".py",
        "mimetype": "text/x-python",
        "name": "python",
        "pygments_lexer": "ipython3",
    },
}
ADDRESS = re.compile(r"\b0x[0-9a-f]{8,}\b")


def code_cells(nb: dict) -> list[dict]:
    return [cell for cell in nb["cells"] if cell["cell_type"] == "code"]


def source_chain(nb: dict) -> list[str]:
    """One hash per code cell, over its source and that of every code cell before it."""
    chain, seen = [], hashlib.sha256()
    for cell in code_cells(nb):
        seen.update(cell["source"].encode() + b"\0")
        chain.append(seen.hexdigest()[:12])
    return chain


def executed_chain(nb: dict) -> list[str]:
    """The chain at the last run, or [] for a notebook that execute.py never wrote."""
    return nb["metadata"].get(OURS, {}).get("executed", [])


def normalise(nb: dict) -> None:
    """Makes the notebook independent of when, where and by which editor it was written."""
    executed = source_chain(nb)
    nb["metadata"] = {**NOTEBOOK_METADATA, OURS: {"executed": executed}}
    for cell in nb["cells"]:
        cell["metadata"] = {k: v for k, v in cell["metadata"].items() if k in KEPT_CELL_METADATA and v}
        if cell["cell_type"] == "code":
            cell["outputs"] = [tidy_output(output) for output in join_streams(cell["outputs"])]


def give_ids(cells: list[dict]) -> None:
    """Keeps each cell's id; one that has none, or another's, gets the first free c-NNN."""
    taken: set[str] = set()
    homeless = []
    for cell in cells:
        if cell.get("id") and cell["id"] not in taken:
            taken.add(cell["id"])
        else:
            homeless.append(cell)
    free = (f"c-{number:03d}" for number in range(10_000))
    for cell in homeless:
        cell["id"] = next(name for name in free if name not in taken)


def join_streams(outputs: list[dict]) -> list[dict]:
    """Joins printed pieces that follow each other; of a line redrawn with \\r only the last state stays."""
    joined: list[dict] = []
    for output in outputs:
        last = joined[-1] if joined else {}
        if output["output_type"] == "stream" == last.get("output_type") and output["name"] == last["name"]:
            last["text"] += output["text"]
        else:
            joined.append(output)
    for output in joined:
        if output["output_type"] == "stream":
            output["text"] = re.sub(r"[^\n]*\r(?!\n)", "", output["text"])
    return joined


def tidy_output(output: dict) -> dict:
    output.pop("transient", None)
    if output["output_type"] == "error":  # the frames hold paths and line numbers of this machine
        output["traceback"] = [f"{output['ename']}: {output['evalue']}"]
    for mime in [mime for mime in output.get("data", {}) if mime.startswith("application/vnd.jupyter.widget")]:
        del output["data"][mime]
    return output


def output_text(output: dict) -> str:
    """All text of an output; pictures in base64 are left out."""
    if output["output_type"] == "stream":
        return output["text"]
    if output["output_type"] == "error":
        return output["evalue"]
    texts = [value for mime, value in output["data"].items() if not mime.startswith(("image/png", "image/jpeg"))]
    return "\n".join(text if isinstance(text, str) else repr(text) for text in texts)


def problems(nb: dict, root: Path) -> list[str]:
    """What must not be stored, one line each, with the cell and the way out."""
    here = {str(root): "the repository's path", f"{Path.home()}/": "the home folder"}
    here |= {
        f"{tempfile.gettempdir()}/": "the folder for temporary files",
        "/site-packages/": "an install path",
    }
    found = []
    for number, cell in enumerate(nb["cells"]):
        for output in cell.get("outputs", []):
            text = output_text(output)
            where = f"cell {number} ({cell['id']})"
            if output.get("name") == "stderr":
                found.append(f"{where} wrote to stderr: {text.strip()[:120]!r}. Mend the cause, or print it.")
            if address := ADDRESS.search(text):
                found.append(f"{where} shows the address {address[0]}: give the object a repr, or end with ;")
            for path in [path for path in here if path in text][:1]:
                found.append(f"{where} shows {here[path]} ({path}): print a relative path")
    return found


def keep_measured(new: dict, old: dict) -> int:
    """Puts back the stored outputs of cells tagged nbval-ignore-output that nothing gave a reason to change.

    That is: the cell and all code before it are as they were at the last run. Returns how many were kept.
    """
    before, now, kept = executed_chain(old), source_chain(new), 0
    for i, (cell, stored) in enumerate(zip(code_cells(new), code_cells(old), strict=True)):
        unchanged = i < len(before) and before[i] == now[i] and stored["outputs"]
        if unchanged and IGNORE_TAG in cell["metadata"].get("tags", []):
            cell["outputs"] = stored["outputs"]
            kept += 1
    return kept
