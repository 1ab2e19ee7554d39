"""Drawings of the exhibits as inline SVG, which need no script."""
