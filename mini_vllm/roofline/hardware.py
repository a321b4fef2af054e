"""Peak numbers of machines: dense FLOP/s, memory bandwidth, memory, each with its source. Knows no model. Chapter 2.

Data sheets print the rate "with sparsity", twice the dense one, in large type; here stand the dense rates. float32 is
the rate of the plain cores: TF32 rounds its inputs to 10 bits and is another number format. On GeForce cards the rate
is the one with FP32 accumulation, as matrix libraries use it: half the rate with FP16 accumulation.
"""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass

from mini_vllm.errors import ConfigError
from mini_vllm.roofline.arguments import require_positive


@dataclass(frozen=True)
class HardwareSpec:
    """One device.

    flop_per_s: dtype -> peak dense FLOP/s. bytes_per_s: memory bandwidth. memory_bytes: its size.
    source: where the numbers come from. measured: they are what this machine reached, not what a data sheet promises.
    """

    name: str
    flop_per_s: Mapping[str, float]
    bytes_per_s: float
    memory_bytes: float
    source: str
    measured: bool = False

    def __post_init__(self) -> None:
        if not self.flop_per_s:
            raise ConfigError(f"{self.name!r} has no FLOP/s for any dtype; measure or look up at least one")
        for dtype, rate in self.flop_per_s.items():
            require_positive(rate, f"flop_per_s[{dtype!r}]")
        require_positive(self.bytes_per_s, "bytes_per_s")
        require_positive(self.memory_bytes, "memory_bytes")

    def peak(self, dtype: str) -> float:
        """Peak FLOP/s for `dtype`. Raises ConfigError if this device does not compute in it."""
        if dtype not in self.flop_per_s:
            raise ConfigError(
                f"{self.name} has no {dtype} rate; it has {', '.join(self.flop_per_s)}. Choose one of these, or "
                "another card"
            )
        return self.flop_per_s[dtype]

    def ridge_point(self, dtype: str) -> float:
        """FLOP per byte at which memory and arithmetic take equally long; below it a step waits for memory."""
        return self.peak(dtype) / self.bytes_per_s


def _card(
    name: str, half: float, single: float, gb_per_s: float, gigabytes: float, source: str, *, bfloat16: bool = True
) -> HardwareSpec:
    """half, single: TFLOP/s, for 16-bit and 32-bit numbers."""
    rates = {"float16": half * 1e12, "float32": single * 1e12}
    if bfloat16:
        rates["bfloat16"] = half * 1e12
    return HardwareSpec(name, rates, gb_per_s * 1e9, gigabytes * 1e9, source)


_NVIDIA = "https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/"
_T4 = f"NVIDIA T4 datasheet, {_NVIDIA}tesla-t4/t4-tensor-core-datasheet-951643.pdf; Turing has no bfloat16"
_L4 = "NVIDIA L4 datasheet (242 TFLOP/s are with sparsity), https://www.nvidia.com/en-us/data-center/l4/"
_A10G = "NVIDIA A10G datasheet for AWS G5 (an A10 has 125 TFLOP/s), https://aws.amazon.com/ec2/instance-types/g5/"
_A40 = "NVIDIA A40 datasheet, https://www.nvidia.com/en-us/data-center/a40/"
_A100 = f"NVIDIA A100 datasheet, {_NVIDIA}a100/pdf/nvidia-a100-datasheet-us-nvidia-1758950-r4-web.pdf"
_H100 = "NVIDIA H100 datasheet, half of its rates with sparsity, https://www.nvidia.com/en-us/data-center/h100/"
_H200 = "NVIDIA H200 datasheet, half of its rates with sparsity, https://www.nvidia.com/en-us/data-center/h200/"
_ADA = (
    "NVIDIA Ada architecture whitepaper 2.02, appendix, "
    "https://images.nvidia.com/aem-dam/Solutions/Data-Center/l4/nvidia-ada-gpu-architecture-whitepaper-V2.02.pdf"
)
_LAPTOP = (
    "computed: 4,608 cores × 2 FLOP at the highest boost of 2.175 GHz, tensor rate twice that as on the RTX 4090; "
    "128 bits at 16 Gbit/s; a laptop set to 35 W has 1.23 GHz. https://www.nvidia.com/en-us/geforce/laptops/"
)
_CARDS = {
    card.name: card
    for card in (
        _card("T4", 65, 8.1, 320, 16, _T4, bfloat16=False),
        _card("L4", 121, 30.3, 300, 24, _L4),
        _card("A10G", 70, 35, 600, 24, _A10G),
        _card("A40", 149.7, 37.4, 696, 48, _A40),
        _card("A100-40GB", 312, 19.5, 1555, 40, _A100),
        _card("A100-80GB-PCIe", 312, 19.5, 1935, 80, _A100),
        _card("A100-80GB-SXM", 312, 19.5, 2039, 80, _A100),
        _card("H100-SXM", 989.4, 66.9, 3350, 80, _H100),
        _card("H200", 989.4, 66.9, 4800, 141, _H200),
        _card("RTX-4070-Laptop", 40.1, 20.0, 256, 8, _LAPTOP),
        _card("RTX-4090", 165.2, 82.6, 1008, 24, _ADA),
    )
}


# What torch.cuda.get_device_name() says, where it is not the name above with "NVIDIA" before it.
_ALIASES = {
    "Tesla T4": "T4",
    "A100-SXM4-40GB": "A100-40GB",
    "A100-PCIE-40GB": "A100-40GB",
    "A100-SXM4-80GB": "A100-80GB-SXM",
    "A100 80GB PCIe": "A100-80GB-PCIe",
    "H100": "H100-SXM",
    "H100 80GB HBM3": "H100-SXM",
    "GeForce RTX 4070 Laptop GPU": "RTX-4070-Laptop",
    "GeForce RTX 4090": "RTX-4090",
}


def known_hardware() -> list[str]:
    """Names that `get_hardware` takes."""
    return list(_CARDS)


def get_hardware(name: str) -> HardwareSpec:
    """The spec of a card, by its name here or as torch reports it; case, spaces and hyphens do not matter.

    Raises ConfigError that lists the known ones.
    """
    plain = {_plain(known): known for known in _CARDS} | {_plain(alias): known for alias, known in _ALIASES.items()}
    wanted = _plain(str(name)).removeprefix("nvidia")
    if wanted not in plain:
        near = difflib.get_close_matches(wanted, plain, n=1)
        hint = f" Did you mean {plain[near[0]]!r}?" if near else ""
        raise ConfigError(
            f"card {name!r} is not one of {', '.join(_CARDS)}.{hint} For another one build a HardwareSpec from its "
            "data sheet, or measure it with probe()."
        )
    return _CARDS[plain[wanted]]


def _plain(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())
