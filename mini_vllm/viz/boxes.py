"""Sentences whose numbers are computed: a takeaway box from a cell. Knows HTML; knows no chapter."""

import html


class Takeaway:
    """A boxed sentence as the output of a cell, so that its numbers come from the run and not from a keyboard."""

    def __init__(self, text: str):
        self.text = text

    def _repr_mimebundle_(self, include=None, exclude=None):
        box = (
            f'<div class="admonition tip"><p class="admonition-title">Takeaway</p><p>{html.escape(self.text)}</p></div>'
        )
        return {"text/html": box, "text/plain": f"Takeaway: {self.text}"}
