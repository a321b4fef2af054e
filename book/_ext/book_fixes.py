"""Mends errors that the theme puts on every page. Knows the theme's page context; knows no page.

1. The script of sphinx-thebe, which we do not use, comes twice: "THEBE_JS_URL has already been declared".
2. The colour mode is empty: "Got invalid theme mode". We say "auto".
3. The arrows that open a part of the table of contents have no name for a screen reader.
"""


def is_thebe(script) -> bool:
    filename, attributes = str(getattr(script, "filename", script)), getattr(script, "attributes", {})
    return "thebe" in filename or "THEBE_JS_URL" in str(attributes.get("body"))


def with_named_arrows(generate_toctree_html):
    def generate(*args, **kwargs):
        tree = generate_toctree_html(*args, **kwargs)  # parsed HTML, or "" where there is nothing to show
        for arrow in tree.find_all("summary") if tree else ():
            arrow["aria-label"] = "Show or hide the pages of this chapter"
        return tree

    return generate


def mend(app, pagename, templatename, context, doctree) -> None:
    context["script_files"] = [script for script in context.get("script_files", []) if not is_thebe(script)]
    context["default_mode"] = "auto"
    if "generate_toctree_html" in context:
        context["generate_toctree_html"] = with_named_arrows(context["generate_toctree_html"])


def setup(app) -> dict[str, bool]:
    app.connect("html-page-context", mend, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
