"""`FusedRMSNorm.apply`: positional arguments only, as of every autograd function."""

import torch

from ... import imitates, record
from ..hpu import metrics


class FusedRMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, data_in, gamma, eps, use_stages=True, bwd_mode=0, fast_math=False):
        record.note("FusedRMSNorm", data_in, gamma, eps, use_stages, bwd_mode, fast_math)
        assert data_in.dtype == gamma.dtype, "the kernel wants one type"
        if imitates("fallback"):
            metrics.fell_back("aten::rms")
        power = torch.linalg.vector_norm(data_in.double(), dim=-1, keepdim=True) ** 2 / data_in.shape[-1]
        return (data_in.double() / (power + eps) ** 0.5 * gamma.double()).to(data_in.dtype)
