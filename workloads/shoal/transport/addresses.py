"""What counts as one address where something is limited by address. Pure."""

import ipaddress


def address_block(address: str) -> str:
    """The block that counts as one address: an IPv4 address, or the /64 of an IPv6 address, which one household has whole."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    if found.version == 6 and found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.ip_network((found, 64), strict=False)) if found.version == 6 else str(found)
