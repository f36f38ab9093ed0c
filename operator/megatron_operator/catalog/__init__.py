"""The recipe library: proven settings as data, and how a recipe is resolved against them."""
