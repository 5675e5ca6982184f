"""Multinomial logistic regression on inputs of norm one: a convex loss with bounded gradients."""

from dataclasses import dataclass
from math import floor, prod, sqrt

from torch import nn

from fastgrad.modules import UnitInputs
from gdpfed.late_import import late_import
from gdpfed.learning.models.feedforward import named_layers

stats = late_import("scipy.stats")


def softmax(input_shape: tuple[int, ...], num_classes: int, *, bias_input: float = 0.1) -> nn.Module:
    """d = (inputs + 1) classes; the bias is the weight of an input that is always `bias_input`."""
    inputs = prod(input_shape) + 1
    return named_layers(
        flatten=nn.Flatten(),
        unit_inputs=UnitInputs(bias_input),
        linear=nn.Linear(inputs, num_classes, bias=False),
    )


@dataclass(frozen=True)
class ConvexBounds:
    """What holds of the cross-entropy of one record under a convex model, whatever the record is.

    Attributes:
        gradient_norm: C_x, which no gradient's norm is above.
        smoothness: beta, of the loss in the parameters.
    """

    gradient_norm: float
    smoothness: float

    def largest_batch(self, learning_rate: float, batch_rate: float, num_records: int) -> int:
        """Return b, the largest batch whose step of eta / B expands no distance: eta beta b / B <= 2."""
        return floor(2 * batch_rate * num_records / (learning_rate * self.smoothness) * (1 + 1e-12))

    def chance_of_long_step(self, learning_rate: float, batch_rate: float, num_records: int) -> float:
        """Return Pr[Binomial(D, q) > b]: that a step could bring two models further apart."""
        largest = self.largest_batch(learning_rate, batch_rate, num_records)
        if largest >= num_records:
            return 0.0
        return float(stats.binom.sf(largest, num_records, batch_rate))


def convex_bounds(model: nn.Module) -> ConvexBounds | None:
    """Return C_x = sqrt(2) r and beta = r^2 / 2 of a model as `softmax` makes it; None of any other.

    The gradient is (p - y) times the input, and ||p - y|| <= sqrt(2); the Hessian in the scores is diag(p) -
    p p^T, whose largest eigenvalue is at most 1/2.
    """
    layers = list(model.children()) if type(model) is nn.Sequential else []
    if [type(layer) for layer in layers] != [nn.Flatten, UnitInputs, nn.Linear]:
        return None
    _, inputs, last = layers
    if not isinstance(inputs, UnitInputs) or last.bias is not None:
        return None
    square = 1 + inputs.constant**2
    return ConvexBounds(gradient_norm=sqrt(2 * square), smoothness=square / 2)
