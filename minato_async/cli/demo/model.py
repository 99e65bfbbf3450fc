"""The network that is trained."""

import torch
from torch import nn


class SmallConvNet(nn.Module):
    """Three convolutions and a linear layer: enough to tell a few dozen photos apart by a crop."""

    def __init__(self, classes: int) -> None:
        """Make the network, its weights from torch's global generator.

        Args:
            classes: Number of photos to tell apart.
        """
        super().__init__()
        self.features = nn.Sequential(
            *_stage(3, 16),
            *_stage(16, 32),
            *_stage(32, 64),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )
        self.classify = nn.Linear(64, classes)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """Return one score per photo.

        Args:
            pixels: Batch × channels × height × width, about −1 to 1.
        """
        scores: torch.Tensor = self.classify(self.features(pixels))
        return scores


def _stage(channels_in: int, channels_out: int) -> tuple[nn.Module, ...]:
    """Halve the picture's sides and change its number of channels."""
    return (
        nn.Conv2d(channels_in, channels_out, kernel_size=3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(channels_out),
        nn.ReLU(inplace=True),
    )
