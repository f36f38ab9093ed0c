"""How the pods of a run find each other, and the state that they share."""
