"""The protocol between the operator and the trainer: typed messages and constants. Standard library only.

Both images install this package, so that a field or an exit code is declared once.
"""
