"""Estimates of memory and step time of a layout, as closed formulas."""
