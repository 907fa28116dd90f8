"""What a Gaudi's software does, each with its twin in plain PyTorch."""
