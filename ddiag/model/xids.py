"""What the fault codes of the NVIDIA driver (Xid) mean for a training job.

After NVIDIA's Xid catalogue; the reading of 13, 31, 43 and 45 follows what training jobs show in practice: these come
from the program, or after another fault, and only say something of the board when that board alone keeps repeating.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

HARDWARE, NVLINK, SOFTWARE, SECONDARY, NOTE = "hardware", "nvlink", "software", "secondary", "note"


@dataclass(frozen=True)
class Xid:
    """One code."""

    means: str
    nature: str
    """hardware (board, its memory, power, slot or firmware), nvlink, software (the program's kernels), secondary
    (follows another fault or the end of a process), or note."""
    act: str = ""
    stops: bool = True
    """Whether the job on that GPU ends or hangs by it."""


_APP = "find the kernel: CUDA_LAUNCH_BLOCKING=1, then compute-sanitizer --tool memcheck"
_RESET = "drain the node, then `nvidia-smi --gpu-reset -i INDEX` or reboot"
_RMA = "drain the node and replace the GPU"
_POWER = "drain the node; check power cables, riser and slot, reseat the GPU; replace it when it comes back"
_FABRIC = "drain the node; `nvidia-smi nvlink -e`, fabric manager log, then reset the GPUs and NVSwitches together"
_FIRMWARE = "reset the GPU or reboot; update the driver, or load it with NVreg_EnableGpuFirmware=0 where supported"

XIDS: Mapping[int, Xid] = MappingProxyType(
    {
        8: Xid("the GPU stopped processing", SOFTWARE, _APP),
        11: Xid("invalid or corrupted push buffer", SOFTWARE, _APP),
        13: Xid("graphics engine exception (out-of-range address, assert …)", SOFTWARE, _APP),
        31: Xid("GPU memory page fault (illegal address)", SOFTWARE, _APP),
        32: Xid("invalid or corrupted push buffer", SOFTWARE, _APP),
        38: Xid("driver firmware error", HARDWARE, _RESET),
        39: Xid("copy engine exception", SOFTWARE, _APP),
        43: Xid("the GPU reset a channel after an error", SECONDARY, stops=False),
        44: Xid("graphics engine fault at a context switch", HARDWARE, _RESET),
        45: Xid("channels torn down: the process ended, or an earlier Xid", SECONDARY, stops=False),
        46: Xid("the GPU stopped processing", HARDWARE, _RESET),
        48: Xid("uncorrectable (double bit) ECC error", HARDWARE, _RESET),
        54: Xid("auxiliary power is not connected", HARDWARE, _POWER),
        57: Xid("error programming the memory's link", HARDWARE, _RMA),
        58: Xid("unstable memory link", HARDWARE, _RMA),
        61: Xid("internal micro-controller breakpoint", HARDWARE, _RESET),
        62: Xid("internal micro-controller halt", HARDWARE, _RESET),
        63: Xid("a memory row or page is retired at the next reset", HARDWARE, _RESET, stops=False),
        64: Xid("a memory row or page could not be retired", HARDWARE, _RMA),
        68: Xid("video decoder exception", SOFTWARE, _APP),
        69: Xid("graphics engine class error", SOFTWARE, _APP),
        74: Xid("NVLink error", NVLINK, _FABRIC),
        78: Xid("vGPU start error", HARDWARE, _RESET),
        79: Xid("the GPU has fallen off the bus", HARDWARE, _POWER),
        80: Xid("corrupted data sent to the GPU", HARDWARE, _RESET),
        92: Xid(
            "a high rate of single bit ECC errors", HARDWARE, "watch it: plan a diagnosis (dcgmi diag -r 3)", False
        ),
        94: Xid("contained ECC error: one process is ended", HARDWARE, _RESET),
        95: Xid("uncontained ECC error: the whole GPU is affected", HARDWARE, _RESET),
        109: Xid("context switch timeout", SOFTWARE, _APP),
        110: Xid("security fault", HARDWARE, _RESET),
        119: Xid("the GPU's system processor (GSP) does not answer", HARDWARE, _FIRMWARE),
        120: Xid("error of the GPU's system processor (GSP)", HARDWARE, _FIRMWARE),
        121: Xid("corrected error of the chip-to-chip link", NOTE, "watch it", False),
        122: Xid("the GPU's flash could not be read", HARDWARE, _RESET),
        123: Xid("the GPU's flash could not be written", HARDWARE, _RESET),
        136: Xid("an NVLink could not be trained", NVLINK, _FABRIC),
        137: Xid("illegal access of a peer's memory over NVLink", SOFTWARE, _APP),
        140: Xid("unrecovered ECC error", HARDWARE, _RESET),
        143: Xid("the GPU could not be initialised", HARDWARE, _RESET),
        144: Xid("NVLink: SAW error", NVLINK, _FABRIC),
        145: Xid("NVLink: link error (RLW)", NVLINK, _FABRIC),
        146: Xid("NVLink: transport error (TLW)", NVLINK, _FABRIC),
        147: Xid("NVLink: TREX error", NVLINK, _FABRIC),
        148: Xid("NVLink: NVLPW error", NVLINK, _FABRIC),
        149: Xid("NVLink: network interface error (NETIR)", NVLINK, _FABRIC),
        150: Xid("NVLink: MSE error", NVLINK, _FABRIC),
        154: Xid("the driver asks for a recovery action", NOTE, stops=False),
        155: Xid("NVLink: error defined by software", NVLINK, _FABRIC),
        156: Xid("a resource is retired", NOTE, "watch it", False),
        157: Xid("a resource could not be retired", HARDWARE, _RMA),
        158: Xid("fatal timeout of the GPU", HARDWARE, _RESET),
        160: Xid("a memory channel could not be retired", HARDWARE, _RMA),
        167: Xid("PCIe fatal timeout", HARDWARE, _POWER),
        171: Xid("uncorrectable DRAM error (beside Xid 48)", HARDWARE, _RESET),
        172: Xid("uncorrectable SRAM error (beside Xid 48)", HARDWARE, _RESET),
    }
)
UNKNOWN = Xid("a fault code that ddiag does not know", NOTE, "look it up in NVIDIA's Xid catalogue", stops=False)


def xid(code: int) -> Xid:
    """What *code* means."""
    return XIDS.get(code, UNKNOWN)
