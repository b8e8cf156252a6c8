"""torch's optimizers without the import of torch._dynamo.

torch wraps some of their functions so that torch.compile passes them by, and the wrappers import torch._dynamo, which
costs 1.7 s of a process whether or not anything is compiled: a simulator without ``-t`` starts a process per task. Here
the wrapped functions stand by themselves; numbers and states are the same.

``fused`` stays off: on a CPU torch's fused kernels read a gradient in the order of its weight's memory, and gradients
that `torch.autograd.grad` returns may have other strides.
"""

from __future__ import annotations

from inspect import unwrap

import torch
from torch.optim import Optimizer


class _Eager(Optimizer):
    add_param_group = unwrap(Optimizer.add_param_group)
    load_state_dict = unwrap(Optimizer.load_state_dict)
    state_dict = unwrap(Optimizer.state_dict)
    zero_grad = unwrap(Optimizer.zero_grad)


class AdamW(_Eager, torch.optim.AdamW):
    """`torch.optim.AdamW`."""

    step = torch.no_grad()(unwrap(torch.optim.AdamW.step))


class SGD(_Eager, torch.optim.SGD):
    """`torch.optim.SGD`."""

    step = torch.no_grad()(unwrap(torch.optim.SGD.step))
