"""What the paper prints, as data: accuracies in per cent, MACs and parameters in millions, by width."""

WIDTHS = ("1/8", "1/4", "1/2", "1")
Printed = dict[str, dict[str, float]]  # series -> key (a width) -> value


def _row(*values: float) -> dict[str, float]:
    return dict(zip(WIDTHS, values, strict=True))


def _fedavg(*values: float) -> Printed:
    """FedAvg is a run for each width."""
    return {f"FedAvg {width}": {width: value} for width, value in zip(WIDTHS, values, strict=True)}


def _table(fedavg: tuple[float, ...], sheterofl: tuple[float, ...], splitmix: tuple[float, ...]) -> Printed:
    return {**_fedavg(*fedavg), "SHeteroFL": _row(*sheterofl), "Split-Mix": _row(*splitmix)}


TABLE1_CIFAR10 = _table((43.4, 45.7, 50.3, 53.3), (49.1, 51.4, 51.5, 49.9), (48.0, 51.1, 52.1, 52.7))
TABLE1_DIGITS = _table((86.1, 87.3, 88.7, 89.6), (86.8, 87.9, 86.9, 81.3), (84.6, 87.5, 89.0, 89.8))
TABLE1_DOMAINNET = _table((67.2, 69.8, 72.6, 72.9), (66.9, 67.8, 66.9, 58.7), (68.4, 71.9, 73.0, 74.2))
DIGITS_BY_AUTHORS = _row(83.1, 86.7, 88.6, 90.1)  # their released code on our copy of Digits, 300 rounds, seed 1
TABLE5_IID = _table((82.2, 86.1, 89.8, 91.0), (81.9, 85.2, 86.5, 85.9), (80.9, 83.4, 85.2, 86.0))
TABLE5_IID_HALF = _table((77.3, 79.9, 83.2, 84.6), (77.2, 79.7, 80.1, 75.5), (74.2, 77.9, 79.5, 81.1))

# one net of a width (FedAvg, SHeteroFL), and as many bases of 1/8 (Split-Mix); the paper's MACs are ten times too small
MACS: dict[str, Printed] = {
    "preresnet18": {"one net": _row(0.9, 3.5, 14.0, 55.7), "bases": _row(0.9, 1.8, 3.6, 7.2)},
    "digit": {"one net": _row(0.1, 0.4, 1.3, 4.8), "bases": _row(0.1, 0.2, 0.5, 0.9)},
    "alexnet": {"one net": _row(2.5, 7.5, 25.5, 92.5), "bases": _row(2.5, 5.0, 9.9, 19.8)},
}
PARAMETERS: dict[str, Printed] = {
    "preresnet18": {"one net": _row(0.2, 0.7, 2.8, 11.2), "bases": _row(0.2, 0.4, 0.7, 1.4)},
    "digit": {"one net": _row(0.2, 0.9, 3.6, 14.2), "bases": _row(0.2, 0.4, 0.9, 1.8)},
    "alexnet": {"one net": _row(0.9, 3.6, 14.3, 57.1), "bases": _row(0.9, 1.8, 3.6, 7.2)},
}

NORMS = ("batch average", "post average", "tracked", "locally tracked")
SCALINGS = ("neither", "layers", "init", "both")  # what is rescaled
TABLE4: Printed = {
    "batch average, neither": _row(81.1, 84.3, 86.2, 87.3),
    "batch average, layers": _row(81.1, 84.2, 86.2, 87.2),
    "batch average, init": _row(84.5, 87.5, 88.9, 89.8),
    "batch average, both": _row(84.6, 87.5, 89.0, 89.8),
    "post average, neither": _row(81.2, 84.5, 86.2, 87.4),
    "post average, layers": _row(81.2, 84.4, 86.2, 87.3),
    "post average, init": _row(84.5, 87.5, 89.0, 89.9),
    "post average, both": _row(84.9, 87.8, 89.3, 90.2),
    "tracked, neither": _row(79.6, 82.8, 84.8, 85.7),
    "tracked, layers": _row(9.4, 10.6, 10.6, 10.6),
    "tracked, init": _row(83.5, 86.4, 87.9, 88.7),
    "tracked, both": _row(8.8, 8.8, 8.8, 10.6),
    "locally tracked, neither": _row(81.1, 84.3, 86.3, 87.3),
    "locally tracked, layers": _row(9.8, 10.6, 10.1, 11.7),
    "locally tracked, init": _row(84.9, 87.7, 89.1, 90.0),
    "locally tracked, both": _row(10.5, 10.6, 12.1, 11.1),
}

# layers of the two nets that the paper lists: outputs, and of convolutions the kernel
DIGIT_NET: Printed = {
    "conv1": {"outputs": 64, "kernel": 5},
    "conv2": {"outputs": 64, "kernel": 5},
    "conv3": {"outputs": 128, "kernel": 5},
    "fc1": {"outputs": 2048},
    "fc2": {"outputs": 512},
    "fc3": {"outputs": 10},
}
ALEXNET: Printed = {
    "conv1": {"outputs": 64, "kernel": 11},
    "conv2": {"outputs": 192, "kernel": 5},
    "conv3": {"outputs": 384, "kernel": 3},
    "conv4": {"outputs": 256, "kernel": 3},
    "conv5": {"outputs": 256, "kernel": 3},
    "fc1": {"outputs": 4096},
    "fc2": {"outputs": 4096},
    "fc3": {"outputs": 10},
}
