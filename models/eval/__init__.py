"""The evaluation of the shipped model on its questions."""
