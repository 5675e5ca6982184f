"""ResNet-18 (He et al., 2016) with GroupNorm (Wu and He, 2018), for pictures of 32x32 pixels."""

from torch import nn


def resnet18(input_shape: tuple[int, ...], num_classes: int, *, channels_per_group: int = 2) -> nn.Module:
    """torchvision's network, with two changes.

    GroupNorm takes the place of BatchNorm, whose running statistics neither clipping nor noise covers.
    The first convolution is 3x3 of stride 1 and not followed by pooling, as is usual for 32x32 pixels.
    """
    from torchvision.models import resnet18 as torchvision_resnet18

    def norm(channels: int) -> nn.Module:
        return nn.GroupNorm(channels // channels_per_group, channels)

    model: nn.Module = torchvision_resnet18(num_classes=num_classes, norm_layer=norm)
    model.conv1 = nn.Conv2d(input_shape[0], 64, kernel_size=3, padding=1, bias=False)
    nn.init.kaiming_normal_(model.conv1.weight, mode="fan_out", nonlinearity="relu")
    model.maxpool = nn.Identity()
    return model
