"""`megatron-prepare`: from text to the files that Megatron trains on."""
