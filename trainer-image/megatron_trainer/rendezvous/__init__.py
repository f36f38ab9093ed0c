"""How the pods of a run find each other, and what they agree on."""
