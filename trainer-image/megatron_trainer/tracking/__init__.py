"""Experiment tracking: TensorBoard, Weights & Biases and MLflow follow the run's file of scalars."""
