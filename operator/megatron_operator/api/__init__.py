"""What a user can ask for and what is reported back: the models of `MegatronRecipe` and of the platform file."""
