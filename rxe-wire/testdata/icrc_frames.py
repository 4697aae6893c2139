#!/usr/bin/env python3
"""Checks (or fills in) the checksums and iCRCs of the frames in tests/vectors_blind.txt.

Shares nothing with rxe-wire: zlib's CRC-32 over a copy of the packet in which what a router may
change is all ones, after eight bytes of ones that stand for the local route header.

    icrc_frames.py check FILE.txt      every frame of the file; exit status 1 if one is wrong
    icrc_frames.py fill FILE.txt       writes the right values into the file
    icrc_frames.py pcap FILE.pcap ...  every RoCE frame of captures: shows that this script is right
"""
import re
import struct
import sys
import zlib

ETH_ROCEV1, ETH_VLAN, ETH_IPV4, ETH_IPV6 = 0x8915, 0x8100, 0x0800, 0x86DD
UDP_ROCEV2 = 4791


def layout(frame):
    """(kind, network header's offset, BTH's offset, iCRC's offset), or None if it is not RoCE."""
    net = 14
    kind = struct.unpack_from("!H", frame, 12)[0]
    while kind == ETH_VLAN:
        kind = struct.unpack_from("!H", frame, net + 2)[0]
        net += 4
    if kind == ETH_ROCEV1:
        return "v1", net, net + 40, net + 40 + struct.unpack_from("!H", frame, net + 4)[0] - 4
    if kind == ETH_IPV4 and frame[net + 9] == 17:
        name, udp, end = "ipv4", net + 20, net + struct.unpack_from("!H", frame, net + 2)[0]
    elif kind == ETH_IPV6 and frame[net + 6] == 17:
        name, udp, end = "ipv6", net + 40, net + 40 + struct.unpack_from("!H", frame, net + 4)[0]
    else:
        return None
    if struct.unpack_from("!H", frame, udp + 2)[0] != UDP_ROCEV2:
        return None
    assert struct.unpack_from("!H", frame, udp + 4)[0] == end - udp, "UDP length"
    return name, net, udp + 8, end - 4


def icrc(frame):
    """The CRC's value; the wire carries it least significant byte first."""
    kind, net, bth, end = layout(frame)
    masked = bytearray(frame[net:end])
    if kind == "ipv4":
        masked[1] = masked[8] = masked[10] = masked[11] = 0xFF  # TOS, TTL, header checksum
    else:
        masked[0] |= 0x0F  # traffic class, high nibble
        masked[1] = masked[2] = masked[3] = 0xFF  # its low nibble, the flow label
        masked[7] = 0xFF  # hop limit
    if kind != "v1":
        masked[bth - net - 2] = masked[bth - net - 1] = 0xFF  # UDP checksum
    masked[bth - net + 4] = 0xFF  # FECN, BECN, reserved
    return zlib.crc32(b"\xff" * 8 + bytes(masked))


def ones_complement(data):
    data += b"\0" * (len(data) % 2)
    total = sum(struct.unpack("!%dH" % (len(data) // 2), data))
    while total > 0xFFFF:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def filled(frame, udp_checksum):
    """The frame with the right iCRC, IPv4 header checksum and (if asked for) UDP checksum."""
    frame = bytearray(frame)
    kind, net, bth, end = layout(frame)
    frame[end:end + 4] = struct.pack("<I", icrc(frame))
    if kind == "ipv4":
        frame[net + 10:net + 12] = b"\0\0"
        struct.pack_into("!H", frame, net + 10, ones_complement(bytes(frame[net:net + 20])))
    if kind != "v1":
        frame[bth - 2:bth] = b"\0\0"
        addresses = frame[net + 12:net + 20] if kind == "ipv4" else frame[net + 8:net + 40]
        pseudo = bytes(addresses) + struct.pack("!II", end + 4 - bth + 8, 17)
        if udp_checksum:
            value = ones_complement(pseudo + bytes(frame[bth - 8:end + 4])) or 0xFFFF
            struct.pack_into("!H", frame, bth - 2, value)
    return bytes(frame)


def sections(lines):
    """Yields (name, numbers of the hex lines, keys with the line they stand in)."""
    name, hexes, keys = None, [], {}
    for number, line in enumerate(lines + ["[end]"]):
        text = line.split("#")[0].strip()
        if text.startswith("["):
            if name and name.startswith("frame "):
                yield name, hexes, keys
            name, hexes, keys = text.strip("[]"), [], {}
        elif "=" in text:
            key, value = text.split("=", 1)
            keys[key] = (value, number)
        elif text:
            hexes.append(number)


def hex_of(line):
    return bytes.fromhex(line.split("#")[0])


def vectors(path, fill):
    lines = open(path).read().split("\n")
    bad = 0
    for name, hexes, keys in sections(lines):
        frame = b"".join(hex_of(lines[n]) for n in hexes)
        right = filled(frame, udp_checksum=keys.get("udp.checksum", ("",))[0] != "0")
        value = "icrc=0x%08x" % icrc(right)
        ok = right == frame and lines[keys["icrc"][1]] == value
        ok = ok and len(frame) == layout(frame)[3] + 4 + int(keys.get("trailer", ("0",))[0])
        if fill:
            at = 0
            for n in hexes:
                size = len(hex_of(lines[n]))
                new = right[at:at + size].hex(" ")
                lines[n] = re.sub(r"^[0-9a-f ]*[0-9a-f]", new, lines[n])
                at += size
            lines[keys["icrc"][1]] = value
        else:
            print("%s %s %s" % ("good" if ok else "BAD ", value, name))
            bad += not ok
    if fill:
        open(path, "w").write("\n".join(lines))
    return bad


def pcap(path):
    data = open(path, "rb").read()
    order = "<" if data[:4] in (b"\xd4\xc3\xb2\xa1", b"\x4d\x3c\xb2\xa1") else ">"
    at, good, bad = 24, 0, 0
    while at + 16 <= len(data):
        size = struct.unpack_from(order + "I", data, at + 8)[0]
        frame = data[at + 16:at + 16 + size]
        at += 16 + size
        where = layout(frame)
        if where:
            right = frame[where[3]:where[3] + 4] == struct.pack("<I", icrc(frame))
            good, bad = good + right, bad + (not right)
    print("%s: %d good, %d bad" % (path, good, bad))
    return bad


if __name__ == "__main__":
    if len(sys.argv) < 3 or sys.argv[1] not in ("check", "fill", "pcap"):
        sys.exit(__doc__)
    if sys.argv[1] == "pcap":
        wrong = sum(pcap(path) for path in sys.argv[2:])
    else:
        wrong = sum(vectors(path, sys.argv[1] == "fill") for path in sys.argv[2:])
    sys.exit(1 if wrong else 0)
