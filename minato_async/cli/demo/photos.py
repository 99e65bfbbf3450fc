"""Finding photos, and decoding one from its file."""

from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".tif", ".tiff", ".gif", ".webp", ".bmp"})

# Pictures among scikit-image's that no camera, scanner or microscope took.
_DRAWINGS = frozenset({"chessboard_GRAY", "chessboard_RGB", "color", "horse", "logo", "phantom"})

# Too small to cut different crops from: scikit-image's test files of 10 × 15 and 14 × 25 pixels.
_LEAST_SIDE = 64


class NoPhotosError(Exception):
    """There is nothing to train on; the message says where photos were looked for."""


@dataclass(frozen=True)
class Photo:
    """A photo that can be decoded.

    Attributes:
        path: Its file.
        width: Pixels.
        height: Pixels.
    """

    path: Path
    width: int
    height: int

    @property
    def megapixels(self) -> float:
        """Millions of pixels."""
        return self.width * self.height / 1e6


def find_photos(folder: Path | None = None) -> list[Photo]:
    """List the photos of a folder, sorted by name, each decoded once to see that it can be.

    Decoding reads every file whole, so all loaders find all photos in the system's page cache.

    Args:
        folder: Where to look, subfolders excluded; None: the photos that scikit-image ships.

    Raises:
        NoPhotosError: Fewer than two photos are there: nothing could be told apart.
    """
    where = scikit_image_folder() if folder is None else folder
    if not where.is_dir():
        raise NoPhotosError(f"there is no folder {where}")
    left_out = _DRAWINGS if folder is None else frozenset()
    photos = list(_decodable(path for path in sorted(where.iterdir()) if path.stem not in left_out))
    if len(photos) < 2:
        raise NoPhotosError(
            f"{len(photos)} photos of at least {_LEAST_SIDE} pixels a side in {where}, "
            "and at least 2 are needed"
        )
    return photos


def scikit_image_folder() -> Path:
    """Return the folder of the pictures inside the installed scikit-image package.

    Raises:
        ModuleNotFoundError: scikit-image is not installed.
    """
    # Not imported: the files are all we want, its start is slow, and one of its extensions turns
    # the GIL of a free-threaded interpreter back on.
    spec = find_spec("skimage")
    if spec is None or spec.submodule_search_locations is None:
        raise ModuleNotFoundError("No module named 'skimage'", name="skimage")
    return Path(next(iter(spec.submodule_search_locations))) / "data"


def _decodable(paths: Iterable[Path]) -> Iterable[Photo]:
    for path in paths:
        if path.suffix.lower() not in _SUFFIXES:
            continue
        try:
            width, height = decode(path).size
        except (UnidentifiedImageError, OSError, ValueError):
            continue  # Some files are there to test other readers: Pillow has none for them.
        if min(width, height) >= _LEAST_SIDE:
            yield Photo(path, width, height)


def decode(path: Path) -> Image.Image:
    """Read and decode a photo, whatever its kind, as 8-bit RGB.

    Gray is repeated in the three channels, transparency is put on white, the first frame of
    several is taken, and deeper than 8 bits is cut to 8.

    Args:
        path: The file.

    Raises:
        UnidentifiedImageError: Pillow cannot tell what the file is.
        OSError: The file cannot be read, or is damaged.
    """
    with Image.open(path) as picture:
        picture.load()
        if picture.mode == "F" or picture.mode.startswith("I"):
            return _from_deep(picture)
        if picture.has_transparency_data:
            layer = picture.convert("RGBA")
            white = Image.new("RGBA", layer.size, "white")
            return Image.alpha_composite(white, layer).convert("RGB")
        return picture.convert("RGB")


def _from_deep(picture: Image.Image) -> Image.Image:
    """Return a picture of 16-bit or 32-bit gray as 8-bit RGB."""
    gray = np.asarray(picture).astype(np.float64)
    low, high = float(gray.min()), float(gray.max())
    if picture.mode.startswith("I") and low >= 0 and high <= 65535:
        # The range of 16-bit files, which Pillow opens in mode "I" or "I;16": the same scale for
        # all of them. Pillow's own conversion would clip everything above 255 to white.
        low, high = 0.0, 65535.0
    scaled = (gray - low) * (255.0 / (high - low if high > low else 1.0))
    return Image.fromarray(scaled.astype(np.uint8)).convert("RGB")
