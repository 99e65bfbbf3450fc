"""Finding and decoding photos, of the kinds that folders really hold."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from minato_async.cli.demo.photos import NoPhotosError, decode, find_photos


def test_scikit_image_brings_photos_of_very_different_sizes() -> None:
    photos = find_photos()

    assert len(photos) >= 15
    sizes = [photo.megapixels for photo in photos]
    assert max(sizes) > 100 * min(sizes)
    names = {photo.path.stem for photo in photos}
    assert "retina" in names
    assert "chessboard_GRAY" not in names  # A drawing.
    assert "multipage" not in names  # 10 × 15 pixels.


def test_what_is_no_photo_is_left_out(pictures: Path) -> None:
    (pictures / "notes.txt").write_text("no picture")
    (pictures / "broken.png").write_bytes(b"no picture either")
    (pictures / "cut.png").write_bytes((pictures / "picture3.png").read_bytes()[:200])
    Image.new("RGB", (20, 400)).save(pictures / "thin.png")

    found = find_photos(pictures)

    assert [photo.path.name for photo in found] == [f"picture{n}.png" for n in range(4)]
    assert (found[3].width, found[3].height) == (300, 300)


def test_an_empty_or_absent_folder_is_said_to_be_so(tmp_path: Path) -> None:
    with pytest.raises(NoPhotosError, match="0 photos of at least 64 pixels"):
        find_photos(tmp_path)
    with pytest.raises(NoPhotosError, match="there is no folder"):
        find_photos(tmp_path / "absent")


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I", "F"])
def test_every_kind_of_picture_becomes_rgb(mode: str, tmp_path: Path) -> None:
    path = tmp_path / "picture.tif"
    Image.new("RGB", (70, 65), (200, 200, 200)).convert(mode).save(path)

    picture = decode(path)

    assert picture.mode == "RGB"
    assert picture.size == (70, 65)


def test_transparent_parts_become_white(tmp_path: Path) -> None:
    path = tmp_path / "clear.png"
    Image.new("RGBA", (70, 70), (10, 20, 30, 0)).save(path)

    assert decode(path).getpixel((5, 5)) == (255, 255, 255)


def test_sixteen_bits_are_cut_to_eight_and_not_clipped(tmp_path: Path) -> None:
    path = tmp_path / "deep.png"
    ramp = np.linspace(0, 65535, 70, dtype=np.uint16)
    Image.fromarray(np.tile(ramp, (70, 1))).save(path)

    row = np.asarray(decode(path))[0, :, 0].astype(int)

    assert row[0] == 0
    assert row[-1] == 255
    assert abs(row[35] - ramp[35] / 257) <= 1


def test_only_the_first_frame_of_an_animation_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "moving.gif"
    first, second = Image.new("L", (70, 70), 255), Image.new("L", (70, 70), 0)
    first.save(path, save_all=True, append_images=[second])

    assert decode(path).getpixel((0, 0)) == (255, 255, 255)
