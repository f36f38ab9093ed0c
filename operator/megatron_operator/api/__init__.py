"""What can be asked for and what is reported back: models of `MegatronRecipe` and of the platform file."""
