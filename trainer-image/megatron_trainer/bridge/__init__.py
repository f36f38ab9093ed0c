"""The second engine: recipe functions of Megatron-Bridge under the same launcher."""
