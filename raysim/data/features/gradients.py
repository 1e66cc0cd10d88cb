"""Histograms of oriented gradients, many images at once (Dalal and Triggs, CVPR 2005).

Steps, in the paper's order: centred differences without smoothing, for colour the channel with the
strongest gradient, unsigned orientations in equal bins, one vote per pixel weighted by its
strength, overlapping blocks of cells normalised with L2-Hys. The numbers are those of
``skimage.feature.hog(..., block_norm="L2-Hys")``; scikit-image adds up a cell's votes in single
precision, this module in double, so the two agree to about 1e-7.

Inside, images run along the last axis and only elementwise operations are used, in a fixed order:
a row of the result does not depend on which images share its chunk.
"""

# N images, H x W pixels, C channels, Y x X cells, O orientations

from __future__ import annotations

import math
from contextlib import suppress
from functools import lru_cache
from typing import Annotated, Any, NamedTuple

import numpy as np
from array_api_compat import array_namespace, device, is_numpy_namespace

from raysim.data.features.extractor import FEATURES, Extractor, ImageShape
from raysim.settings import In, check, settings

Array = Any

CLIP = 0.2  # L2-Hys: entries of a unit block are cut here and the block is normalised again
EPSILON = 1e-5
PIXELS_PER_CHUNK = 2**16  # keeps a chunk's arrays in the second-level cache
PIXELS_PER_GPU_CHUNK = 2**22

SPAN = 511  # differences of two bytes: -255 ... 255
CENTRE = 255 * SPAN + 255
BIN_BITS, CHANNEL_BITS = 10, 6  # of a key, below the 15 bits of the rank: fits into an int32
RANK_SHIFT = BIN_BITS + CHANNEL_BITS


@FEATURES.register("hog")
@settings
class HogFeatures(Extractor):
    """Histograms of oriented gradients; 4x4 cells and 9 orientations give d = 144."""

    orientations: Annotated[int, In("[1, inf)")] = 9
    cell: Annotated[int | None, In("[1, inf)")] = None
    """Side of a cell in pixels; null: a quarter of the shorter side (8 for 32x32, 7 for 28x28)."""
    block: Annotated[int, In("[1, inf)")] = 1
    """Side of a block in cells."""
    enlarge: Annotated[int, In("[1, inf)")] = 1
    """Whole factor by which images are enlarged (bilinear) before; 4 suits the 8x8 digits."""

    def dimension(self, image_shape: ImageShape) -> int:
        height, width = image_shape[0] * self.enlarge, image_shape[1] * self.enlarge
        return hog_dimension(
            (height, width),
            orientations=self.orientations,
            cell=self._cell(height, width),
            block=self.block,
            section="data.features.",
        )

    def extract(self, images: np.ndarray) -> np.ndarray:
        """HoG rows, float32; on a GPU if CuPy finds one."""
        if self.enlarge > 1:
            images = enlarged(images, self.enlarge)
        cell = self._cell(*images.shape[1:3])
        xp: Any = np
        with suppress(ImportError):
            import cupy

            xp = cupy if cupy.is_available() else np
        rows = hog(xp.asarray(images), self.orientations, cell, self.block)
        rows = np.asarray(rows if xp is np else xp.asnumpy(rows), dtype=np.float32)
        if images.dtype != np.uint8:
            # a channel that is not a number may lose against another: do not let it pass unseen
            rows[~np.isfinite(images).all(axis=(1, 2, 3))] = np.nan
        return rows

    def fingerprint(self) -> str:
        return (
            f"hog/1 orientations={self.orientations} cell={self.cell} block={self.block} "
            f"enlarge={self.enlarge}"
        )

    def _cell(self, height: int, width: int) -> int:
        if self.cell is not None:
            return self.cell
        size = f"{height}x{width} pixels"
        do = "set data.features.enlarge so that the shorter side has at least 4 pixels"
        check(min(height, width) >= 4, "data.features.cell", "needs larger images", got=size, do=do)
        return min(height, width) // 4


def enlarged(images: np.ndarray, factor: int) -> np.ndarray:
    """Images (N, factor * H, factor * W, C) float64, bilinear; pixel centres keep their places.

    Samples outside the outermost centres take the border's value (``align_corners=False``).
    """
    for axis in (1, 2):
        size = images.shape[axis]
        place = np.clip((np.arange(size * factor) + 0.5) / factor - 0.5, 0, size - 1)
        below = np.minimum(place.astype(np.int64), max(size - 2, 0))
        above = np.minimum(below + 1, size - 1)
        share = (place - below).reshape((-1, 1, 1) if axis == 1 else (-1, 1))
        images = np.take(images, below, axis) * (1 - share) + np.take(images, above, axis) * share
    return images


class ByteTables(NamedTuple):
    """What a pair of byte differences votes, so that uint8 images need no arctan and no root."""

    keys: Array
    """Rank of the gradient's strength and its bin in one integer, by (row, column) difference."""
    strengths: Array
    """Strength by rank."""


def hog(images: Array, orientations: int = 9, cell: int = 8, block: int = 1) -> Array:
    """HoG rows (N, D) float64 of images (N, H, W) or (N, H, W, C), in the images' array library.

    ``cell`` is the side of a cell in pixels, ``block`` the side of a block in cells. Pixels beyond
    the last whole cell cast no vote.
    """
    xp = array_namespace(images)
    rule = "must have the shape (N, H, W) or (N, H, W, C)"
    check(images.ndim in (3, 4), "images", rule, got=images.shape, do="use image[None] for one")
    if images.ndim == 3:
        images = xp.expand_dims(images, axis=-1)
    num_images, height, width, _ = images.shape
    dimension = hog_dimension((height, width), orientations=orientations, cell=cell, block=block)
    if num_images == 0:
        return xp.zeros((0, dimension), dtype=xp.float64, device=device(images))

    tables: ByteTables | None = None  # for bytes, unless a key would overflow
    too_many = images.shape[3] > 1 << CHANNEL_BITS or orientations >= 1 << BIN_BITS
    if images.dtype == xp.uint8 and not too_many:
        keys, strengths = _byte_tables(orientations)
        place = device(images)
        tables = ByteTables(xp.asarray(keys, device=place), xp.asarray(strengths, device=place))
    budget = PIXELS_PER_CHUNK if "cpu" in str(device(images)).lower() else PIXELS_PER_GPU_CHUNK
    size = max(1, budget // (height * width))
    rows = []
    for start in range(0, num_images, size):
        # (C, H, W, N), contiguous: NumPy's astype would keep the strides of the images
        planes = xp.permute_dims(images[start : min(start + size, num_images), ...], (3, 1, 2, 0))
        planes = xp.reshape(xp.reshape(planes, (-1,)), planes.shape)
        if tables is None:
            strength, bins = _votes_of_floats(planes, orientations, cell)
        else:
            strength, bins = _votes_of_bytes(planes, tables, cell)
        cells = _cell_histograms(strength, bins, orientations, cell)
        rows.append(_normalised_blocks(cells, block))
    return xp.concat(rows, axis=0)


def hog_dimension(
    image_size: tuple[int, int], *, orientations: int, cell: int, block: int, section: str = ""
) -> int:
    """Length of a HoG row; ``section`` goes before the setting's name in an error."""
    counts = {"orientations": orientations, "cell": cell, "block": block}
    for name, count in counts.items():
        check(count >= 1, section + name, "must be at least 1", got=count)
    smaller = min(image_size)
    rule = f"must fit into images of {image_size[0]}x{image_size[1]} pixels"
    check(cell <= smaller, section + "cell", rule, got=cell, do=f"use at most {smaller}")
    most = smaller // cell
    rule = f"must fit into {image_size[0] // cell}x{image_size[1] // cell} cells"
    do = f"use at most {most}, or a smaller {section}cell"
    check(block <= most, section + "block", rule, got=block, do=do)
    blocks_down, blocks_across = (side // cell - block + 1 for side in image_size)
    return blocks_down * blocks_across * block * block * orientations


def _votes_of_bytes(planes: Array, tables: ByteTables, cell: int) -> tuple[Array, Array]:
    """Strength and bin of every pixel's gradient (H, W, N), from planes of bytes."""
    xp = array_namespace(planes)
    last = planes.shape[0] - 1
    best: Array = None
    for channel in range(last + 1):
        plane = xp.astype(planes[channel, ...], xp.int32)
        pair = xp.full(plane.shape, CENTRE, dtype=xp.int32, device=device(planes))
        pair[1:-1, :, :] += (plane[2:, :, :] - plane[:-2, :, :]) * SPAN
        pair[:, 1:-1, :] += plane[:, 2:, :] - plane[:, :-2, :]
        # a maximum of keys finds the strongest channel; the priority lets the first of equals win
        priority = (last - channel) << BIN_BITS
        key = _looked_up(tables.keys, _whole_cells(pair, cell)) + priority
        best = key if best is None else xp.maximum(best, key)
    bins = xp.astype(best & ((1 << BIN_BITS) - 1), xp.int16)
    return _looked_up(tables.strengths, best >> RANK_SHIFT), bins


def _votes_of_floats(planes: Array, orientations: int, cell: int) -> tuple[Array, Array]:
    """Strength and bin of every pixel's gradient (H, W, N), from planes of any real type."""
    xp = array_namespace(planes)
    # float32 is kept until a channel is chosen, as in scikit-image: it decides ties
    planes = xp.astype(planes, xp.float32 if planes.dtype == xp.float32 else xp.float64, copy=False)
    down, across = xp.zeros_like(planes), xp.zeros_like(planes)
    down[:, 1:-1, :, :] = planes[:, 2:, :, :] - planes[:, :-2, :, :]
    across[:, :, 1:-1, :] = planes[:, :, 2:, :] - planes[:, :, :-2, :]
    down, across = _strongest_channel(down, across)
    down = xp.astype(_whole_cells(down, cell), xp.float64)
    across = xp.astype(_whole_cells(across, cell), xp.float64)

    degrees = xp.atan2(down, across) * (180.0 / np.pi)
    degrees = degrees - 180.0 * xp.astype(degrees >= 180.0, xp.float64)
    degrees = degrees + 180.0 * xp.astype(degrees < 0.0, xp.float64)
    bins = xp.zeros(degrees.shape, dtype=xp.int16, device=device(planes))
    for border in _bin_borders(orientations):
        bins += xp.astype(degrees >= border, xp.int16)
    return xp.sqrt(down * down + across * across), bins


def _strongest_channel(down: Array, across: Array) -> tuple[Array, Array]:
    """Gradient (H, W, N) of each pixel's strongest channel, the first of equals."""
    xp = array_namespace(down)
    channels, shape = down.shape[0], down.shape[1:]
    if channels == 1:
        return down[0, ...], across[0, ...]
    # hypot, not the cheaper root of a sum: its rounding decides ties, as in scikit-image
    best = xp.hypot(down[0, ...], across[0, ...])
    choice = xp.zeros(shape, dtype=xp.int64, device=device(down))
    for channel in range(1, channels):
        strength = xp.hypot(down[channel, ...], across[channel, ...])
        choice = xp.maximum(choice, channel * xp.astype(strength > best, xp.int64))
        best = xp.maximum(best, strength)
    # looked up, since NumPy's where is several times slower than a take
    pixels = math.prod(shape)
    index = choice * pixels + xp.reshape(xp.arange(pixels, device=device(down)), shape)
    return _looked_up(xp.reshape(down, (-1,)), index), _looked_up(xp.reshape(across, (-1,)), index)


def _cell_histograms(strength: Array, bins: Array, orientations: int, cell: int) -> Array:
    """Mean vote per cell and orientation (Y, X, O, N); a pixel votes for one bin only."""
    xp = array_namespace(strength)
    height, width, num = strength.shape
    shape = (height // cell, cell, width // cell, cell, num)
    strength, bins = xp.reshape(strength, shape), xp.reshape(bins, shape)
    if is_numpy_namespace(xp):
        # the same sums in the same order, hence the same bits, five times as fast
        down, _, across, _, _ = shape
        first = np.arange(down * across).reshape(down, 1, across, 1, 1) * (orientations + 1)
        slot = (first + bins) * num + np.arange(num)
        length = down * across * (orientations + 1) * num
        sums = np.bincount(slot.reshape(-1), strength.reshape(-1), minlength=length)
        # the extra bin takes angles that were rounded up to 180 degrees
        sums = sums.reshape(down, across, orientations + 1, num)
        return sums[:, :, :orientations, :] / (cell * cell)

    ids = xp.arange(orientations, dtype=bins.dtype, device=device(bins))
    ids = xp.reshape(ids, (1, 1, orientations, 1))
    total = xp.zeros((shape[0], shape[2], orientations, num), dtype=xp.float64, device=device(bins))
    for i in range(cell):
        for j in range(cell):
            chosen = xp.expand_dims(bins[:, i, :, j, :], axis=2) == ids
            vote = xp.expand_dims(strength[:, i, :, j, :], axis=2)
            total += vote * xp.astype(chosen, xp.float64)
    return total / (cell * cell)


def _normalised_blocks(cells: Array, block: int) -> Array:
    """Rows (N, D) of overlapping blocks, each scaled to unit length, clipped and scaled again."""
    xp = array_namespace(cells)
    down, across = cells.shape[0] - block + 1, cells.shape[1] - block + 1
    members = [cells[i : i + down, j : j + across, ...] for i in range(block) for j in range(block)]
    blocks = xp.concat(members, axis=2)
    blocks = _unit_length(blocks)
    blocks = _unit_length(
        xp.minimum(blocks, xp.asarray(CLIP, dtype=xp.float64, device=device(cells)))
    )
    return xp.reshape(xp.permute_dims(blocks, (3, 0, 1, 2)), (cells.shape[3], -1))


def _unit_length(blocks: Array) -> Array:
    xp = array_namespace(blocks)
    squares = blocks * blocks
    energy = squares[:, :, 0, ...]
    for index in range(1, blocks.shape[2]):  # library sums choose their order by the array's shape
        energy = energy + squares[:, :, index, ...]
    return blocks / xp.expand_dims(xp.sqrt(energy + EPSILON**2), axis=2)


def _whole_cells(plane: Array, cell: int) -> Array:
    """Cut a plane (H, W, N) to the pixels that lie in a whole cell."""
    return plane[: plane.shape[0] // cell * cell, : plane.shape[1] // cell * cell, :]


def _looked_up(table: Array, index: Array) -> Array:
    xp = array_namespace(table)
    flat = xp.astype(xp.reshape(index, (-1,)), xp.int64)
    return xp.reshape(xp.take(table, flat, axis=0), index.shape)


@lru_cache(maxsize=4)
def _byte_tables(orientations: int) -> ByteTables:
    difference = np.arange(-255.0, 256.0)
    down, across = difference[:, None], difference[None, :]
    strengths, rank = np.unique(np.hypot(across, down), return_inverse=True)
    degrees = np.rad2deg(np.arctan2(down, across)) % 180
    bins = np.searchsorted(_bin_borders(orientations), degrees, side="right")
    keys = (rank.reshape(bins.shape) << RANK_SHIFT) + bins
    return ByteTables(keys.reshape(-1).astype(np.int32), strengths)


def _bin_borders(orientations: int) -> list[float]:
    """Upper ends of the bins in degrees; an angle rounded up to 180 lies in no bin."""
    return [180.0 / orientations * (i + 1) for i in range(orientations)]
