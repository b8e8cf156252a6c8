"""Networks of other libraries, and networks that SurgFL refuses."""

from typing import ClassVar

import torch
from torch import Tensor, nn

HERE = "tests.networks.own"


class Small(nn.Module):
    """One convolution with running statistics, and a last layer; 122 numbers for three classes at a width of four."""

    def __init__(self, *, num_classes: int, width: int = 4) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        self.last = nn.Conv2d(width, num_classes, 1)

    def forward(self, image: Tensor) -> Tensor:
        return self.last(self.body(image))


class WithParts(Small):
    parts: ClassVar = {"top": ("body.1", "last"), "first": ("body.0",)}


class WrongParts(Small):
    parts: ClassVar = {"top": ("neck",)}


class Strides(Small):
    stride = (2, 2)


class Plain(Small):
    """A network without normalisation, whose first layer is named `encoder`."""

    def __init__(self, *, num_classes: int) -> None:
        super().__init__(num_classes=num_classes)
        self.body = nn.Identity()
        self.encoder, self.last = nn.Conv2d(3, 4, 1), nn.Conv2d(4, num_classes, 1)

    def forward(self, image: Tensor) -> Tensor:
        return self.last(self.encoder(image))


class Halved(Small):
    def forward(self, image: Tensor) -> Tensor:
        return super().forward(image)[..., ::2, ::2]


class Listed(Small):
    def forward(self, image: Tensor) -> Tensor:
        result = super().forward(image)
        return [result, result] if self.training else result


class Eights(Small):
    def forward(self, image: Tensor) -> Tensor:
        result = super().forward(image)
        return result + nn.functional.interpolate(nn.functional.max_pool2d(result, 8), scale_factor=8.0)


class Soft(Small):
    def forward(self, image: Tensor) -> Tensor:
        return super().forward(image).softmax(1)


class Grey(Small):
    def __init__(self, *, num_classes: int) -> None:
        super().__init__(num_classes=num_classes)
        self.body = nn.Conv2d(1, 4, 1)


class Nothing(nn.Module):
    def __init__(self, *, num_classes: int) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(num_classes))


class Twice(Small):
    def __init__(self, *, num_classes: int) -> None:
        super().__init__(num_classes=num_classes)
        self.again = self.last


class Lazy(Small):
    def __init__(self, *, num_classes: int) -> None:
        super().__init__(num_classes=num_classes)
        self.last = nn.LazyConv2d(num_classes, 1)


class Unheard(Small):
    def __init__(self, *, num_classes: int) -> None:
        super().__init__(num_classes=3)


class Endless(nn.Module):
    def __init__(self, *, width: int = 4) -> None:
        super().__init__()
        self.last = nn.Conv2d(3, width, 1)


class Modules(Small):
    def __init__(self, *, num_classes: int) -> None:
        super().__init__(num_classes=num_classes)
        self.parts = nn.ModuleList([nn.Identity()])


def no_class(**arguments):
    raise AssertionError("was called")
