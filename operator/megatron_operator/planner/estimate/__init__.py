"""Memory and step time of a layout, as closed formulas."""
