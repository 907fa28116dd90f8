"""What an engine keeps, in PyTorch."""

from . import hpu  # first: it sets the environment that a Gaudi reads when torch is imported

hpu.detect()  # now, so that `torch.hpu` exists after this import
