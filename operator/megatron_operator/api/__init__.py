"""Models of MegatronRecipe and of the platform file, and the names and errors that all packages share."""
