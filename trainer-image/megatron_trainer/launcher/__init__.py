"""The process of a pod that starts ranks, watches them and starts them again."""
