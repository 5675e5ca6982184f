"""Tests of a user's own pictures, in folders or tables, which pictures.yaml or the settings describe."""

import struct
import sys
import zlib
from typing import Any

import numpy as np
import pytest
from PIL import Image

from conf.load import load
from gdpfed.clients.configured import task_of
from gdpfed.errors import InputError, LearningError
from gdpfed.federation.node.join_checks import tell_cut
from gdpfed.late_import import late_import
from gdpfed.learning.data import DataSource, deep_pictures, load_dataset
from gdpfed.learning.data.dataset import ExampleForm
from gdpfed.learning.data.own import OwnData, check_own, own_held_out, own_split
from gdpfed.learning.data.own_files import read_own
from gdpfed.learning.data.picture_files import read_picture

DECLARED = "classes: [benign, malignant]\nimage_size: 8\nchannels: 1\n"
GREY = np.arange(48, dtype=np.uint8).reshape(6, 8) * 5


def draw(path, values=GREY, mode=None, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.asarray(values), mode).save(path, **options)
    return path


def folder(root, count=4, classes=("benign", "malignant"), declared=DECLARED):
    """Write pictures of one grey value each: 100 times the index of the class, plus the picture's number."""
    for at, name in enumerate(classes):
        for number in range(count):
            draw(root / name / f"{number}.png", np.full((8, 8), 100 * at + number, np.uint8))
    if declared is not None:
        (root / "pictures.yaml").write_text(declared)
    return root


def table(root, rows, header="path,label"):
    (root / "pictures.csv").write_text("\n".join([header, *rows, ""]))
    return root


def run_form(root, *more):
    words = ["dataset=image_folder", f"dataset.path={root}", "dataset.num_clients=2", "dataset.model=linear"]
    return task_of(load([*words, *more])).described().form


def deep_png(path, values, kind):
    """Write a PNG of 16 bits a channel; `kind`: 0 grey, 2 colour, 4 grey and alpha, 6 colour and alpha."""
    height, width = values.shape[:2]
    header = struct.pack(">IIBBBBB", width, height, 16, kind, 0, 0, 0)
    lines = zlib.compress(b"".join(b"\0" + row.astype(">u2").tobytes() for row in values))
    chunks = [(b"IHDR", header), (b"IDAT", lines), (b"IEND", b"")]
    said = [struct.pack(">I", len(c)) + n + c + struct.pack(">I", zlib.crc32(n + c)) for n, c in chunks]
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(said))
    return path


def test_a_node_reads_its_folder_as_the_run_does(tmp_path):
    form = run_form(folder(tmp_path / "server"))
    own = folder(tmp_path / "own", 3)
    split = own_split(own, form)
    assert split.x.shape == (6, 1, 8, 8)
    assert split.y.tolist() == [0, 0, 0, 1, 1, 1]
    np.testing.assert_allclose(split.x[:, 0, 0, 0], np.array([0, 1, 2, 100, 101, 102]) / 127.5 - 1, atol=1e-6)
    assert len(check_own(OwnData(own))[0]) == 6
    held = OwnData(own, held_out_share=0.5)
    assert len(own_held_out(held, form)) + len(own_split(own, form, 0.5)) == 6
    # A site that lacks a class has the same numbers, though it has one folder.
    lone = folder(tmp_path / "lone", 2, ("malignant",))
    assert own_split(lone, form).y.tolist() == [1, 1]


def test_a_folder_that_declares_something_else_stays_out(tmp_path):
    form = run_form(folder(tmp_path / "server"))
    for other in (
        DECLARED.replace("benign, malignant", "malignant, benign"),
        DECLARED.replace("8", "9"),
        DECLARED + "window: [0, 200]\n",
    ):
        own = folder(tmp_path / "own", declared=other)
        with pytest.raises(LearningError, match=r"its pictures.yaml declares other pictures than this run"):
            own_split(own, form)


def test_another_declaration_is_another_rule_of_what_is_held_out(tmp_path):
    """Pictures of another size have other bytes, by which they are held out."""
    rules = {
        OwnData(folder(tmp_path / name, declared=declared), held_out_share=0.3).rule
        for name, declared in (
            ("a", DECLARED),
            ("b", DECLARED.replace("image_size: 8", "image_size: 6")),
            ("c", DECLARED),
        )
    }
    assert len(rules) == 2


def test_settings_alone_are_the_same_declaration(tmp_path):
    """The settings alone describe pictures as fully as a file pictures.yaml with the same values."""
    said = run_form(folder(tmp_path / "a", declared=None), "dataset.image_size=8", "dataset.channels=1")
    assert said == run_form(folder(tmp_path / "b"))
    assert len(own_split(folder(tmp_path / "own", 2), said)) == 4
    assert run_form(folder(tmp_path / "a", declared=None), "dataset.image_size=8").pictures != said.pictures
    with pytest.raises(
        LearningError, match=r"dataset.channels=3: .*pictures.yaml declares channels: 1, leave"
    ):
        run_form(tmp_path / "b", "dataset.channels=3")


def test_a_server_without_pictures_has_their_form(tmp_path):
    (tmp_path / "server").mkdir()
    (tmp_path / "server" / "pictures.yaml").write_text(DECLARED)
    data = load_dataset(DataSource("image_folder", str(tmp_path / "server")))
    assert (len(data.train), len(data.test), data.class_names) == (0, 0, ("benign", "malignant"))
    assert ExampleForm.of(data) == run_form(folder(tmp_path / "full"))


def test_a_table_lists_pictures_with_their_parties(tmp_path):
    root = folder(tmp_path, 6, ("one", "other"))
    rows = [
        f"{name}/{number}.png,{label},{'bonn' if number % 2 else 'ulm'}"
        for name, label in (("other", "benign"), ("one", "malignant"))
        for number in range(5)
    ]
    table(root, rows, "path,label,party")
    data = load_dataset(DataSource("image_folder", str(root)))
    assert (data.class_names, data.owner_names) == (("benign", "malignant"), ("bonn", "ulm"))
    assert data.owners is not None
    assert data.test_owners is not None
    assert len(data.owners) + len(data.test_owners) == 10
    taken = data.train.take(np.arange(len(data.train)))
    values = np.rint((taken.x[:, 0, 0, 0] + 1) * 127.5).astype(int)
    np.testing.assert_array_equal(values < 100, taken.y == 1)
    np.testing.assert_array_equal(values % 2 == 1, data.owners == 0)
    assert data.notes == (f"{root}: 2 pictures are in no row of the table, and are not read",)
    # At a node all rows are its own.
    assert np.asarray(read_own(root)[1]).tolist() == [0] * 5 + [1] * 5


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (["benign/9.png,benign"], "line 2 names benign/9.png, which is not there"),
        (["../a.png,benign"], "line 2 names ../a.png, and pictures lie below"),
        (["/a.png,benign"], "line 2 names /a.png, and pictures lie below"),
        (["benign/0.png,good"], "line 2 has the label 'good', which is not one of benign, malignant"),
        (["benign/0.png,"], "line 2 lacks a label: fill it in, or leave it out"),
        ([",benign"], "line 2 lacks a path: fill it in, or leave it out"),
        (
            ["benign/0.png,benign", "benign/1.png,benign", "benign/0.png,benign"],
            "lines 2 and 4 name one picture",
        ),
        ([], "lists no pictures"),
    ],
)
def test_a_table_that_cannot_be_read_is_named_by_its_line(tmp_path, rows, words):
    with pytest.raises(LearningError, match=words):
        read_own(table(folder(tmp_path), rows))


@pytest.mark.parametrize(
    ("declared", "words"),
    [
        ("classes: [a, b]\nchannels: 1\n", "lacks the key 'image_size'"),
        (
            DECLARED.replace("channels: 1", "channels: 2"),
            "channels is '2'; it must be 1 .grey. or 3 .colour.",
        ),
        (
            DECLARED.replace("image_size: 8", "image_size: 8.5"),
            "image_size is '8.5'; it must be a whole number",
        ),
        (DECLARED.replace(", malignant", ""), "classes is .*; it must be two classes or more"),
        (DECLARED + "window: [9, 3]\n", "window is .* two numbers, the lower first"),
        (
            DECLARED + "size: 3\n",
            "key 'size' is not known; did you mean slice. Use classes, image_size, channels, window",
        ),
        (
            DECLARED.replace("benign", "bening"),
            "'benign' is not one of the classes bening, malignant .did you mean 'bening'",
        ),
        (
            None,
            "is a folder without pictures.yaml: declare the pictures there as the run does, or name one file",
        ),
    ],
)
def test_a_declaration_that_cannot_be_used_is_named(tmp_path, declared, words):
    with pytest.raises(LearningError, match=words):
        read_own(folder(tmp_path, declared=declared))


def test_a_node_says_in_its_log_what_it_does_not_read(tmp_path, monkeypatch):
    own, said = folder(tmp_path), list[Any]()
    (own / "benign" / "scan.dcm").write_bytes(b"DICM")
    (own / "benign" / "scan.nii.gz").write_bytes(b"")
    (own / "benign" / ".hidden.png").write_bytes(b"")
    monkeypatch.setattr(
        "gdpfed.federation.node.join_checks.log", lambda level, words, *more: said.append(words % more)
    )
    tell_cut(OwnData(own))
    assert [
        "2 of 10 files are not read: .dcm 1, .nii.gz 1; pictures end" in said[0],
        ".hidden.png" in said[1],
        len(said),
    ] == [True, True, 2]


COLOUR = np.stack([GREY, 255 - GREY, GREY // 2], 2)
FORMS: dict[str, Any] = {
    "grey.png": (GREY, "L", {}),
    "colour.png": (COLOUR, "RGB", {}),
    "black.png": (GREY > 100, None, {}),
    "grey.tif": (GREY, "L", {}),
    "packed.tif": (COLOUR, "RGB", {"compression": "tiff_lzw"}),
    "colour.webp": (COLOUR, "RGB", {"lossless": True}),
    "grey.bmp": (GREY, "L", {}),
    "grey.pgm": (GREY, "L", {}),
    "cmyk.tif": (255 - np.stack([GREY, GREY, GREY, 255 + 0 * GREY], 2), "CMYK", {}),
    "cmyk.jpg": (
        255 - np.stack([0 * GREY + 55, 0 * GREY + 55, 0 * GREY + 55, 255 + 0 * GREY], 2),
        "CMYK",
        {"quality": 100},
    ),
    "grey.jpg": (np.full((8, 8), 77, np.uint8), "L", {"quality": 100}),
}


@pytest.mark.parametrize("name", FORMS)
def test_pictures_of_8_bits_are_what_a_viewer_shows(tmp_path, name):
    values, mode, options = FORMS[name]
    found = read_picture(str(draw(tmp_path / name, values, mode, **options)), 3, None).transpose(1, 2, 0)
    shown = np.asarray(values) * (255 if mode is None else 1)
    if mode == "CMYK":
        shown = 255 - shown[..., :3]
    shown = np.broadcast_to(shown if shown.ndim == 3 else shown[..., None], found.shape)
    assert np.abs(found.astype(int) - shown).max() <= (2 if name.endswith("jpg") else 0)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_picture_is_turned_alike_in_every_kind_of_file(tmp_path, orientation):
    turned = Image.Exif()
    turned[0x0112] = orientation
    for values, window in ((GREY, None), (GREY.astype(np.uint16) * 16, (0, 16 * 255))):
        files = [draw(tmp_path / "a.png", values, exif=turned), draw(tmp_path / "a.tif", values, exif=turned)]
        files.append(draw(tmp_path / "b.tif", values, exif=turned, compression="tiff_lzw"))
        first, *others = (read_picture(str(path), 1, None, window) for path in files)
        assert first.shape == ((1, 8, 6) if orientation > 4 else (1, 6, 8))
        assert all(np.array_equal(first, each) for each in others)
        corner = {1: 0, 2: 7, 3: 47, 4: 40, 5: 0, 6: 40, 7: 47, 8: 7}[orientation]
        assert first[0, 0, 0] == GREY.reshape(-1)[corner]


def test_a_palette_is_its_colours(tmp_path):
    Image.fromarray(COLOUR).quantize(16).save(tmp_path / "a.png")
    with Image.open(tmp_path / "a.png") as file:
        assert file.mode == "P"
        shown = np.asarray(file.convert("RGB"))
    np.testing.assert_array_equal(read_picture(str(tmp_path / "a.png"), 3, None).transpose(1, 2, 0), shown)


def test_16_bits_are_read_by_the_window_and_by_nothing_else(tmp_path):
    rng = np.random.default_rng(0)
    values, window = rng.integers(0, 4096, (6, 8), dtype=np.uint16), (100, 4000)
    shown = np.rint(255 * np.clip((values.astype(float) - 100) / 3900, 0, 1)).astype(np.uint8)
    files = [deep_png(tmp_path / "grey.png", values, 0), draw(tmp_path / "grey.tif", values)]
    for path in files:
        np.testing.assert_array_equal(read_picture(str(path), 1, None, window)[0], shown)
        with pytest.raises(
            LearningError, match=r"has 16 bits .* or declare the window of its values in pictures.yaml"
        ):
            read_picture(str(path), 1, None)


def test_16_bits_in_colour_are_read_whole(tmp_path):
    """Colour pictures of 16 bits a channel are read in full; Pillow would drop the lower 8 bits."""
    tifffile = pytest.importorskip("tifffile")
    rng, window = np.random.default_rng(0), (100, 4000)
    three = rng.integers(0, 4096, (6, 8, 3), dtype=np.uint16)
    shown = np.rint(255 * np.clip((three.astype(float) - 100) / 3900, 0, 1)).astype(np.uint8)
    files = [deep_png(tmp_path / "colour.png", three, 2)]
    for name, more in (("plain", {}), ("packed", {"compression": "lzw", "predictor": True})):
        files.append(tmp_path / f"{name}.tif")
        tifffile.imwrite(files[-1], three, photometric="rgb", **more)
    files.append(tmp_path / "apart.tif")
    tifffile.imwrite(files[-1], three.transpose(2, 0, 1), photometric="rgb", planarconfig="separate")
    for path in files:
        with pytest.raises(LearningError, match=r"has 16 bits .* or declare the window of its values"):
            read_picture(str(path), 3, None)
        np.testing.assert_array_equal(read_picture(str(path), 3, None, window).transpose(1, 2, 0), shown)
    # What is half transparent is half white, whatever the window is of.
    alpha = np.full((6, 8), 65535, dtype=np.uint16)
    alpha[0], alpha[1] = 0, 32896
    inks = np.concatenate([three, alpha[..., None]], 2)
    tifffile.imwrite(tmp_path / "ink.tif", inks, photometric="rgb", extrasamples=["unassalpha"])
    for path in (deep_png(tmp_path / "ink.png", inks, 6), tmp_path / "ink.tif"):
        found = read_picture(str(path), 3, None, window).transpose(1, 2, 0).astype(int)
        assert (found[0] == 255).all()
        assert np.abs(found[1] - (shown[1].astype(int) + 255) / 2).max() <= 1
        np.testing.assert_array_equal(found[2:], shown[2:])
    grey = deep_png(tmp_path / "grey.png", np.stack([three[..., 0], alpha], 2), 4)
    np.testing.assert_array_equal(read_picture(str(grey), 1, None, window)[0, 2:], shown[2:, :, 0])


def test_16_bits_in_other_colours_are_named(tmp_path, monkeypatch):
    tifffile = pytest.importorskip("tifffile")
    four = np.zeros((6, 8, 4), np.uint16)
    tifffile.imwrite(tmp_path / "print.tif", four, photometric="separated")
    tifffile.imwrite(tmp_path / "dim.tif", four, photometric="rgb", extrasamples=["assocalpha"])
    (tmp_path / "a.ppm").write_bytes(b"P6 8 6 65535\n" + four[..., :3].tobytes())
    for name, words in (
        ("print.tif", "has 16 bits and no plain colours|cannot be read"),
        ("dim.tif", "has 16 bits and no plain colours"),
        ("a.ppm", "has 16 bits a value, which are read from PNG and TIFF only: save it as one of these"),
    ):
        with pytest.raises(LearningError, match=words):
            read_picture(str(tmp_path / name), 3, None, (0, 4095))
    monkeypatch.setitem(sys.modules, "imagecodecs", None)
    monkeypatch.setattr(deep_pictures, "imagecodecs", late_import("imagecodecs"))
    path = deep_png(tmp_path / "colour.png", four[..., :3], 2)
    with pytest.raises(InputError, match=r"needs the package imagecodecs, .* install 'imagecodecs>=2025'"):
        read_picture(str(path), 3, None, (0, 4095))


def test_a_window_leaves_what_is_transparent_on_white(tmp_path):
    ink = np.stack([GREY, GREY, GREY, 255 * (GREY > 100)], 2).astype(np.uint8)
    found = read_picture(str(draw(tmp_path / "ink.png", ink, "RGBA")), 1, None, (50, 150))[0]
    shown = np.rint(255 * np.clip((GREY.astype(float) - 50) / 100, 0, 1))
    np.testing.assert_array_equal(found, np.where(GREY > 100, shown, 255))


def test_what_a_window_does_not_fit_is_named(tmp_path):
    for path, words in (
        (
            draw(tmp_path / "a.png"),
            "has 8 bits a channel, and the window 0 to 4095 is for more: the picture would be",
        ),
        (
            draw(tmp_path / "a.tif", np.full((6, 8), 0.5, np.float32)),
            "has 32 bits a channel: scale it to 8 bits$",
        ),
        (
            draw(tmp_path / "b.tif", np.full((6, 8), 9, np.uint16), tiffinfo={262: 0}),
            "stores white as 0",
        ),
    ):
        with pytest.raises(LearningError, match=words):
            read_picture(str(path), 1, None, (0, 4095))
    found = read_picture(str(tmp_path / "a.png"), 1, None, (50, 150))[0]
    np.testing.assert_array_equal(found, np.rint(255 * np.clip((GREY.astype(float) - 50) / 100, 0, 1)))
