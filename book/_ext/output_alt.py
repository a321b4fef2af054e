"""Gives pictures in notebook outputs the alt text that the code stored beside them. Knows no page.

`mini_vllm.viz.plots.Picture` stores `alt` in the output's metadata, where Jupyter keeps width and height too;
MyST-NB 1.x hands only the latter two on to the image.
"""

from myst_nb.core.render import NbElementRenderer


def setup(app):
    render_image = NbElementRenderer.render_image

    def render_image_with_alt(self, data):
        images = render_image(self, data)
        alt = data.output_metadata.get(data.mime_type, {}).get("alt")
        for image in images:
            if alt:
                image["alt"] = alt
        return images

    NbElementRenderer.render_image = render_image_with_alt
    return {"version": "1", "parallel_read_safe": True}
