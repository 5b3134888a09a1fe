"""``lspci`` (-vv or plain) and the kernel's command line: links, access control (ACS), IOMMU."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from ddiag.ingest.logs.bus_ids import BUS, bus_id
from ddiag.ingest.logs.facts import fact
from ddiag.ingest.logs.line import Line
from ddiag.model.incident import Event, NodeFact, Seen

_DEVICE = re.compile(rf"^\s*({BUS}) ((?:[\w/-]+ )*?(?:controller|bridge|accelerators?|device|Bridge)[^:]*): (.*)")
_LINK = re.compile(r"Lnk(Cap|Sta):.*?Speed ([\d.]+)GT/s(?: \(\w+\))?, Width x(\d+)( \(downgraded\))?")
_ACS = re.compile(r"ACSCtl:\s*(.*)")
_REDIRECT = re.compile(r"(SrcValid|ReqRedir|CmpltRedir)\+")
_CMDLINE = re.compile(r"\b(?:BOOT_IMAGE=|root=\S+ ro\b).*")


class PciTools:
    """The device whose heading came last owns what follows."""

    needles: tuple[str, ...] = (
        "controller",
        "bridge",
        "accelerator",
        "LnkCap",
        "LnkSta",
        "ACSCtl",
        "BOOT_IMAGE",
        "root=",
        "(rev ff)",
    )

    def __init__(self) -> None:
        self._device: str | None = None

    def line(self, line: Line) -> Iterator[Seen]:
        device = _DEVICE.search(line.text)
        if device is not None:
            self._device = bus_id(device[1])
            if "NVIDIA" in device[3] or "Mellanox" in device[3]:
                yield NodeFact("pcie.name", device[3].strip(), device=self._device)
            if "(rev ff)" in line.text:
                yield NodeFact("pcie.gone", line.text.strip(), 1.0, device=self._device)
            return
        link, acs = _LINK.search(line.text), _ACS.search(line.text)
        if link is not None and self._device is not None:
            yield from self._link(link)
        elif acs is not None and _REDIRECT.search(acs[1]):
            flags = " ".join(f"{name}+" for name in _REDIRECT.findall(acs[1]))
            yield NodeFact("pcie.acs", flags, device=self._device)
            yield Event("node.acs", {"bus_id": self._device, "flags": flags})
        elif (command := _CMDLINE.search(line.text)) is not None:
            yield NodeFact("kernel.cmdline", command[0].strip())

    def end(self) -> Iterable[Seen]:
        return ()

    def _link(self, match: re.Match[str]) -> Iterator[NodeFact]:
        suffix = "_max" if match[1] == "Cap" else ""
        yield fact(f"pcie.width{suffix}", f"x{match[3]}{match[4] or ''}", self._device, float(match[3]))
        yield fact(f"pcie.speed{suffix}_gts", match[2], self._device)
