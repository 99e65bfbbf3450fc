"""Random augmentation of a photo, written with Pillow and numpy alone.

torchvision has all of this ready, but importing it turns the GIL of a free-threaded interpreter
back on, which would decide the comparison before it starts.
"""

import random

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageEnhance

CROP_SIZE = 96
"""Side of the square a crop is resized to, in pixels."""

_CROP_AREA = (0.2, 1.0)
_CROP_ASPECT = (3 / 4, 4 / 3)
_STRENGTH = (0.6, 1.4)
_HUE = 25  # Of 255: a tenth of the colour circle either way.


def augment(photo: Image.Image, rng: random.Random) -> npt.NDArray[np.float32]:
    """Cut a random crop, flip it, shift its colours, resize it.

    In this order the cost follows the size of the photo, as in many a training script; it is
    what makes some samples fifty times dearer than others.

    Args:
        photo: The decoded photo, RGB.
        rng: Where all the randomness comes from.

    Returns:
        Channels × height × width, about −1 to 1.
    """
    crop = _random_crop(photo, rng)
    if rng.random() < 0.5:
        crop = crop.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    crop = _jitter(crop, rng)
    small = crop.resize((CROP_SIZE, CROP_SIZE), Image.Resampling.BILINEAR)
    scaled = np.asarray(small, dtype=np.float32) / np.float32(127.5) - np.float32(1)
    return np.ascontiguousarray(scaled.transpose(2, 0, 1))


def _random_crop(photo: Image.Image, rng: random.Random) -> Image.Image:
    """Cut out a rectangle of random area and aspect ratio, wherever it fits."""
    area = photo.width * photo.height * rng.uniform(*_CROP_AREA)
    aspect = rng.uniform(*_CROP_ASPECT)
    width = max(1, min(photo.width, round((area * aspect) ** 0.5)))
    height = max(1, min(photo.height, round((area / aspect) ** 0.5)))
    left = rng.randint(0, photo.width - width)
    top = rng.randint(0, photo.height - height)
    return photo.crop((left, top, left + width, top + height))


def _jitter(crop: Image.Image, rng: random.Random) -> Image.Image:
    """Change brightness, contrast, saturation and hue at random, in random order."""
    steps = ["brightness", "contrast", "saturation", "hue"]
    rng.shuffle(steps)
    for step in steps:
        if step == "brightness":
            crop = ImageEnhance.Brightness(crop).enhance(rng.uniform(*_STRENGTH))
        elif step == "contrast":
            crop = ImageEnhance.Contrast(crop).enhance(rng.uniform(*_STRENGTH))
        elif step == "saturation":
            crop = ImageEnhance.Color(crop).enhance(rng.uniform(*_STRENGTH))
        else:
            crop = _turn_hue(crop, rng.randint(-_HUE, _HUE))
    return crop


def _turn_hue(crop: Image.Image, by: int) -> Image.Image:
    """Turn the colour circle by ``by`` of its 256 parts."""
    hue, saturation, value = crop.convert("HSV").split()
    turned = hue.point([(part + by) % 256 for part in range(256)])
    return Image.merge("HSV", (turned, saturation, value)).convert("RGB")
