"""The documented place of the HTML report."""

from .render.html import to_page

__all__ = ["to_page"]
