"""Convolutions as matrix products, so that many clients' convolutions are one batched product.

vmap makes one grouped convolution of the convolutions of many clients, each with weights of its own;
libraries are slow at those, above all backwards. Here every patch of the picture becomes a row of a matrix,
and the convolution its product with the weights; the gradient of a single record is one, too. Pictures lie in
memory with their channels last, so that a patch is copied in runs and pooling works on whole vectors.
"""

from typing import Any

import torch
from torch.nn import functional

Pair = tuple[int, int]


def is_plain(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    stride: int | Pair = 1,
    padding: int | Pair | str = 0,
    dilation: int | Pair = 1,
    groups: int = 1,
) -> bool:
    """Whether a convolution is 2-d, in one group, without dilation and with numeric padding."""
    return (
        input.dim() == 4 and groups == 1 and dilation in (1, (1, 1), [1, 1]) and not isinstance(padding, str)
    )


def unfolded_conv2d(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    stride: int | Pair = 1,
    padding: int | Pair = 0,
) -> torch.Tensor:
    """Compute ``torch.nn.functional.conv2d`` for one group without dilation, as a matrix product.

    `input`: (N, C, H, W), in any memory layout. `weight`: (O, C, kernel height, kernel width). Returns (N, O,
    H', W'), with the channels last in memory.
    """
    outputs, _, height, width = weight.shape
    patches = patches_of(input, (height, width), stride, padding)
    matrix = weight.permute(2, 3, 1, 0).reshape(-1, outputs)
    products = patches.flatten(0, 2) @ matrix
    if bias is not None:
        products = products + bias
    return products.view(*patches.shape[:3], outputs).permute(0, 3, 1, 2)


def patches_of(input: torch.Tensor, kernel: Pair, stride: int | Pair, padding: int | Pair) -> torch.Tensor:
    """Return the patch under a kernel at each position of pictures (N, C, H, W): (N, H', W', patch)."""
    pictures = input.permute(0, 2, 3, 1)
    rows, columns = pair(padding)
    if rows or columns:
        pictures = functional.pad(pictures, (0, 0, columns, columns, rows, rows))
    patches: torch.Tensor = Patches.apply(pictures.contiguous(), kernel, pair(stride))
    return patches


def columns_of(input: torch.Tensor, kernel: Pair, stride: int | Pair, padding: int | Pair) -> torch.Tensor:
    """Return the patch under a kernel at each position, as columns: (N, C, H, W) to (N, patch, positions)."""
    rows, columns = pair(padding)
    if rows or columns:
        input = functional.pad(input, (columns, columns, rows, rows))
    windows = input.contiguous().unfold(2, kernel[0], pair(stride)[0]).unfold(3, kernel[1], pair(stride)[1])
    return windows.permute(0, 1, 4, 5, 2, 3).flatten(1, 3).flatten(2)


class Patches(torch.autograd.Function):
    """Takes the patch under a kernel at each position of pictures: (N, H, W, C) to (N, H', W', patch)."""

    @staticmethod
    def forward(pictures: torch.Tensor, kernel: Pair, stride: Pair) -> torch.Tensor:
        count, height, width, channels = pictures.shape
        down, right = (
            (size - k) // s + 1 for size, k, s in zip((height, width), kernel, stride, strict=True)
        )
        row, picture = width * channels, height * width * channels
        # A row of a patch lies in one piece, so the innermost dimension takes width and channels together.
        runs = pictures.as_strided(
            (count, down, right, kernel[0], kernel[1] * channels),
            (picture, stride[0] * row, stride[1] * channels, row, 1),
        )
        return runs.reshape(count, down, right, -1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[torch.Tensor, Pair, Pair], output: torch.Tensor) -> None:
        ctx.shape, ctx.kernel, ctx.stride = inputs[0].shape, inputs[1], inputs[2]

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        """Add every patch's gradient to the place that the patch was taken from.

        As many columns of the kernel go at once as lie beside each other in the picture without meeting the
        next patch, which is as many as the stride.
        """
        height, width = ctx.kernel
        (count, _, picture_width, channels), (down_by, right_by) = ctx.shape, ctx.stride
        row, picture = picture_width * channels, ctx.shape[1] * picture_width * channels
        down, right = gradients[0].shape[1:3]
        patches = gradients[0].reshape(count, down, right, height, width * channels)
        pictures = patches.new_zeros(ctx.shape)
        for i in range(height):
            for j in range(0, width, right_by):
                run = slice(j * channels, min(j + right_by, width) * channels)
                taken = pictures.as_strided(
                    (count, down, right, run.stop - run.start),
                    (picture, down_by * row, right_by * channels, 1),
                    i * row + run.start,
                )
                taken += patches[:, :, :, i, run]
        return pictures, None, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int, None, None], pictures: torch.Tensor, kernel: Pair, stride: Pair
    ) -> tuple[torch.Tensor, int]:
        """Compute patches under torch.vmap: the pictures of all clients are one batch."""
        batched = pictures.movedim(in_dims[0], 0)
        patches = Patches.apply(batched.flatten(0, 1).contiguous(), kernel, stride)
        return patches.view(*batched.shape[:2], *patches.shape[1:]), 0


def pair(value: int | tuple[int, ...]) -> Pair:
    """Return a kernel size or stride for both axes; one number stands for both."""
    return (value, value) if isinstance(value, int) else (value[0], value[1])
