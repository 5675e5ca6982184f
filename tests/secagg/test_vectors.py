"""Tests of cryptographic primitives and of all messages of a sum, against published test vectors."""

import json

import pytest

from secagg.crypto.keys import PrivateKey, aead, commitment, hkdf_sha256
from secagg.crypto.prg import KEY_BYTES, cipher_stream, keystream, mask_stream
from testing.project import DOCS
from testing.wire_vectors import SUMS, transcript

h = bytes.fromhex
WIRE_VECTORS = DOCS / "secagg_wire_vectors.json"


@pytest.mark.parametrize("name", SUMS)
def test_messages_are_as_published(name: str) -> None:
    """Messages are as published; another format needs a new `secagg.protocol.wire.VERSION`."""
    published = json.loads(WIRE_VECTORS.read_text(encoding="utf-8"))
    assert published.keys() == SUMS.keys()
    assert transcript(name) == published[name]


@pytest.mark.parametrize(
    ("scalar", "point", "product"),
    [
        (  # RFC 7748, section 5.2
            "a546e36bf0527c9d3b16154b82465edd62144c0ac1fc5a18506a2244ba449ac4",
            "e6db6867583030db3594c1a424b15f7c726624ec26b3353b10a903a6d0ab1c4c",
            "c3da55379de9c6908e94ea4df28d084f32eccf03491c71f754b4075577a28552",
        ),
        (  # RFC 7748, section 6.1: Bob's private key, Alice's public key, their secret
            "5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb",
            "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a",
            "4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742",
        ),
    ],
)
def test_x25519(scalar: str, point: str, product: str) -> None:
    assert PrivateKey(h(scalar)).agree(h(point)) == h(product)


def test_x25519_public_key() -> None:
    """Bob's private key in RFC 7748, section 6.1, gives his public key."""
    private = h("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb")
    public = "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f"
    assert PrivateKey(private).public_bytes() == h(public)


def test_hkdf() -> None:
    """HKDF with SHA-256 gives the output of test case 3 in RFC 5869."""
    expected = "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8"
    assert hkdf_sha256(b"\x0b" * 22, b"", 42) == h(expected)


COUNTER = h("f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff")
PLAINTEXT = h("6bc1bee22e409f96e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e51")


@pytest.mark.parametrize(
    ("suite", "key", "ciphertext"),
    [
        (  # NIST SP 800-38A, F.5.1
            "aes128ctr",
            "2b7e151628aed2a6abf7158809cf4f3c",
            "874d6191b620e3261bef6864990db6ce9806f66b7970fdff8617187bb9fffdff",
        ),
        (  # NIST SP 800-38A, F.5.5
            "aes256ctr",
            "603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4",
            "601ec313775789a5b7a7f504bbf3d228f443e3ca4d62b59aca84e990cacaf5c5",
        ),
    ],
)
def test_aes_ctr(suite: str, key: str, ciphertext: str) -> None:
    assert cipher_stream(suite, h(key), COUNTER).update(PLAINTEXT) == h(ciphertext)


def test_chacha20() -> None:
    """ChaCha20 gives the keystream of RFC 8439, A.1, test vector 1, for key, nonce and counter zero."""
    expected = (
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"
    )
    assert cipher_stream("chacha20", bytes(32)).update(bytes(64)) == h(expected)


@pytest.mark.parametrize(
    ("suite", "first_block"),
    [
        ("aes128ctr", "0388dace60b6a392f328c2b971b2fe78"),  # test case 2
        ("aes256ctr", "cea7403d4d606b6e074ec5d3baf39d18"),  # test case 14
    ],
)
def test_masks_begin_as_gcm_does(suite: str, first_block: str) -> None:
    """Masks begin as ciphertexts of zeros do in the GCM specification (McGrew and Viega)."""
    assert mask_stream(suite, bytes(KEY_BYTES[suite]), 0).update(bytes(16)) == h(first_block)


def test_keystream_is_aes_256_from_block_zero() -> None:
    """The keystream begins with AES-256 of the zero block, as in NIST's AESAVS, appendix C.1, KeySbox."""
    key = h("c47b0294dbbbee0fec4757f22ffeee3587ca4730c3d33b691df38bab076bc558")
    assert keystream(key)(16) == h("46f2fb342d6f0ab477476fc501242c5f")


def test_chacha20_poly1305() -> None:
    """ChaCha20-Poly1305 gives the first 16 bytes and the tag of RFC 8439, section 2.8.2."""
    text = (
        b"Ladies and Gentlemen of the class of '99: If I could offer you only one tip for the "
        b"future, sunscreen would be it."
    )
    cipher = aead("chacha20", bytes(range(0x80, 0xA0)))
    sealed = cipher.encrypt(h("070000004041424344454647"), text, h("50515253c0c1c2c3c4c5c6c7"))
    assert sealed[:16] == h("d31a8d34648e60db7b86afbc53ef7ec2")
    assert sealed[-16:] == h("1ae10b594f09e26a7e902ecbd0600691")


def test_aes_gcm() -> None:
    """AES-GCM gives the output of test case 2 in the GCM specification (McGrew and Viega)."""
    sealed = aead("aes128ctr", bytes(16)).encrypt(bytes(12), bytes(16), None)
    assert sealed == h("0388dace60b6a392f328c2b971b2fe78ab6e47d42cec13bdf53a67b21257bddf")


def test_commitment_is_sha256() -> None:
    """A commitment to "abc" is the SHA-256 digest in the example of FIPS 180-4."""
    expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert commitment(b"abc") == h(expected)
