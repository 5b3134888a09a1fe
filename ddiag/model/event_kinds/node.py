"""Events about nodes and their services."""

from __future__ import annotations

NODE = {
    "node.service": "state of a service: service, state (active, inactive or failed)",
    "node.acs": "a PCI bridge redirects peer traffic upstream (ACS): bus_id, flags",
    "node.too_many_files": "a process ran out of file descriptors: what",
}
