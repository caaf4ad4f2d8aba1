"""Bytes that may never change: what is on disk must stay readable, and stored twice must be stored alike.

`ORIGINAL` is the row of the original server's published bytes, `MIXED` one whose blocks have no simple order.
"""

from __future__ import annotations

import numpy as np
import pytest
from pionkv.kernels import FORMATS, Element, LayerSpec, kivi, pack

ORIGINAL = ((np.arange(32) - 15) / 8).astype(np.float32)
ORIGINAL[5] = -2.5
MIXED = ((np.arange(64) * 37 % 64 - 31) / 8).astype(np.float32)

# Per format the row of ORIGINAL and that of MIXED; empty where the row is too short for the format.
ROWS = {
    "fp32": (
        "0000f0bf0000e0bf0000d0bf0000c0bf0000b0bf000020c0000090bf000080bf000060bf000040bf000020bf000000bf"
        "0000c0be000080be000000be000000000000003e0000803e0000c03e0000003f0000203f0000403f0000603f0000803f"
        "0000903f0000a03f0000b03f0000c03f0000d03f0000e03f0000f03f00000040",
        "000078c00000403f000028c0000000400000b0bf00005040000000be000060c00000903f000010c000001840000080bf"
        "000068400000803e000048c00000c03f0000f0bf00003040000020bf000080400000203f000030c00000f03f0000c0bf"
        "00004840000080be000068c00000803f000018c000001040000090bf000060400000003e000050c00000b03f000000c0"
        "00002840000040bf000078400000003f000038c00000e03f0000d0bf000040400000c0be000070c00000603f000020c0"
        "000008400000a0bf0000584000000000000058c00000a03f000008c000002040000060bf000070400000c03e000040c0"
        "0000d03f0000e0bf00003840000000bf",
    ),
    "fp16": (
        "80bf00bf80be00be80bd00c180bc00bc00bb00ba00b900b800b600b400b0000000300034003600380039003a003b003c"
        "803c003d803d003e803e003f803f0040",
        "c0c3003a40c1004080bd804200b000c3803c80c0c04000bc4043003440c2003e80bf804100b90044003980c1803f00be"
        "404200b440c3003cc0c0804080bc0043003080c2803d00c0404100bac0430038c0c1003f80be004200b680c3003b00c1"
        "404000bdc0420000c0c2003d40c0004100bb8043003600c2803e00bfc04100b8",
    ),
    "bf16": (
        "f0bfe0bfd0bfc0bfb0bf20c090bf80bf60bf40bf20bf00bfc0be80be00be0000003e803ec03e003f203f403f603f803f"
        "903fa03fb03fc03fd03fe03ff03f0040",
        "78c0403f28c00040b0bf504000be60c0903f10c0184080bf6840803e48c0c03ff0bf304020bf8040203f30c0f03fc0bf"
        "484080be68c0803f18c0104090bf6040003e50c0b03f00c0284040bf7840003f38c0e03fd0bf4040c0be70c0603f20c0"
        "0840a0bf5840000058c0a03f08c0204060bf7040c03e40c0d03fe0bf384000bf",
    ),
    "int8": (
        "4522913c000020c0a4abb2b9c081cfd6dde4ebf2f900070e151c232a31383f474e555c636a71787f",
        "f8fbfd3c000078c08116a93ed267fa8d22b54bde7306992ec257ea7f12a53ace63f6891eb147da6f02952abd53e67b0e"
        "a136ca5ff2851aad43d66bfe9126b94fe2770a9d32c65bee",
    ),
    "fp8": (
        "485d40425521f3f3f2f1f0f7eeecebe9e7e4e1dcd400545c616467696b6c6e6f707172737374",
        "e426ad434424f763f26fea74cff568f071e77657f46bee72e17761f26eeb74d7f667f170e87522244ff56bef72e4775f"
        "f36eed74dcf766f270ea7500f56af072e6775cf46dee73df",
    ),
    "fp8_e5m2": (
        "0cd34242b721d9d9d9d8d8dbd6d6d5d4d3d2d0ceca004a4e505253545556565758585959595a",
        "5d9baa439224db51d957d55ac7da54d858d35a4bd955d759d05b50d957d559cbda53d858d45a6e2447da55d759d15b4f"
        "d956d659cddb52d958d55a00da55d859d25b4dd956d659cf",
    ),
    "bf16_rope_fp8_body": (
        "",
        "78c0403f28c00040b0bf504000be60c0903f10c0184080bf6840803e48c0c03ff0bf304020bf8040203f30c0f03fc0bf"
        "484080be68c0803f18c0104090bf604022244ff56bef72e4775ff36eed74dcf766f270ea7500f56af072e6775cf46dee"
        "73df",
    ),
    "turbo4": (
        "0000004028cc777979777c7777777f77777777777777",
        "00008040f8c8b756975999d9f5595995599dd99559250549b85457599995f59595952595d9595259",
    ),
    "turbo3": (
        "00000040dccb1bc76ddeb66ddfb66ddbb66d",
        "00008040cec8eb345224ad53944899b44809af48ab3451a4a88ba22888340551",
    ),
    "turbo2": (
        "0000004015cc5556565557555555",
        "000080402ac85969aa6d96a69a16064849659a9d99916a64",
    ),
    "mlx4g32": (
        "223304546566778898a9aabbccdcedee003500c1",
        "6f4d2bf8c6a3815e2c09e7b4826f4d1af8c5a3704e2bf9d6b4815f3c0ae7c59200b8c0b70044c043",
    ),
    "mlx4g64": (
        "",
        "6f4d2bf8c6a3815e2c09e7b4826f4d1ae8c5a3704e2bf9d6a4816f3c0ae7c59200b80044",
    ),
    "mlx8g32": (
        "242b323940004e555c636a727980878e959ca3aab2b9c0c7ced5dce3eaf1f8ff822400c1",
        "ff6ad741af1886f45dcb35a20c7ae851bf2996006edb45b31c8af862cf39a7107eef54c52a9b0071e247b91d8fff65d6"
        "3bac1182f358c92e9f0475e74bbd2293e0a7a1a70044c043",
    ),
    "mlx8g64": (
        "",
        "ff6ad741af1886f45dcb35a20c7ae851bf2996006edb45b31c8af862cf39a7107eec55c32d9a0472df49b7208efc66d3"
        "3dab1482f059c7319e0876e44dbb2592e0a70044",
    ),
    "mlx4g32_rt": (
        "223304556576778899aabacbccddeeffcd3400c1",
        "90b2e5173a5c8ea1d4f6295b7d90c3e5183a6d8fb2d407295c7ea1c3f6184b6d33381138c0c380c3",
    ),
    "qserve4": (
        "223304556576778899aabacbccddeeffcd342a48",
        "90b2e5173a5c8ea1d4f6295b7d90c3e5183a6d8fb2d407295c7ea1c3f6184b6d3338113862476147",
    ),
    "rvq1": (
        "4828b058d9f20c8bef40",
        "63a40578adc448815e41061ba2d3cde89b2b6a41",
    ),
    "rvq2": (
        "c1718459508ad5669ee67cefac25cfd0de40",
        "5b6d34986250916a64b480e89a36806952416950ca564dc95fa677ace6a5b1af4aa55441",
    ),
}

KIVI = {
    ("kivi4", kivi.Side.KEYS): (
        "f0f0f0000f0ffff0f0f00f0f0ff0f0f00f0f0ffff0f0000f0f0ff0f0f00f0f0f443444344434443444344434"
        "4434443444344434443444344434443444344434443444344434443444344434443444344434443444344434"
        "4434443444344434c0c380c240c100c080bd00ba00b000c3c0c180c080be00bc00b680c340c200c180bf00bd"
        "00b90000c0c280c140c000be00bb00b440c300c2c0c000bf80bc00b8"
    ),
    ("kivi4", kivi.Side.VALUES): (
        "90b2e5173a5c8ea1d4f6295b7d90c3e53338c0c3183a6d8fb2d407295c7ea1c3f6184b6d113880c3"
    ),
    ("kivi2", kivi.Side.KEYS): (
        "cc0c33cfcc33c3cc33f3cc3033cc3c33553d553d553d553d553d553d553d553d553d553d553d553d553d553d"
        "553d553d553d553d553d553d553d553d553d553d553d553d553d553d553d553d553d553dc0c380c240c100c0"
        "80bd00ba00b000c3c0c180c080be00bc00b680c340c200c180bf00bd00b90000c0c280c140c000be00bb00b4"
        "40c300c2c0c000bf80bc00b8"
    ),
    ("kivi2", kivi.Side.VALUES): ("881d668bdd6287d94041c0c362b7d82176982d76154180c3"),
}


def test_every_format_has_its_bytes_here() -> None:
    assert set(ROWS) == set(FORMATS)


@pytest.mark.parametrize("backend", ["oracle", "cpu"])
@pytest.mark.parametrize("name", list(ROWS))
def test_rows(name: str, backend: str) -> None:
    fmt = FORMATS[name]
    for x, expected in zip((ORIGINAL, MIXED), ROWS[name], strict=True):
        if not expected:
            continue
        rope = len(x) - 32 if fmt.family == "rope" else 0
        spec = LayerSpec(name, len(x), rope=rope, head_dim=0 if fmt.group else 32)
        out = bytearray(spec.row_bytes)
        pack(spec, x, Element.F32, 1, out, backend=backend)
        assert out.hex() == expected


@pytest.mark.parametrize("backend", ["oracle", "cpu"])
@pytest.mark.parametrize(("name", "side"), list(KIVI))
def test_token_groups(name: str, side: kivi.Side, backend: str) -> None:
    spec = kivi.KiviSpec(name, 32, tokens=2)
    out = bytearray(spec.stored_bytes(side, 2))
    kivi.pack(spec, side, MIXED, Element.F32, 2, out, backend=backend)
    assert out.hex() == KIVI[name, side]


def test_the_round_trip_encoder_gives_the_bytes_published_for_the_original_server() -> None:
    assert ROWS["mlx4g32_rt"][0] == "223304556576778899aabacbccddeeffcd3400c1"
