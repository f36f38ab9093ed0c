"""Proofs that the weights of model families convert: small random models, there and back."""
