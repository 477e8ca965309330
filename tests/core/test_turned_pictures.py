"""Training images that are turned: by no angle nothing but mirroring, by some the corners go and the middle stays."""

import torch

from splitmix.core.batches import flip_and_turn
from splitmix.core.reproducible import torch_rng_for


def test_a_turned_picture_without_an_angle_is_the_picture_or_its_mirror_image():
    x = torch.rand(20, 3, 6, 8)
    turned = flip_and_turn(x, torch_rng_for(0), degrees=0)
    mirrored = [torch.equal(after, before.flip(-1)) for after, before in zip(turned, x, strict=True)]
    assert 0 < sum(mirrored) < 20
    assert all(m or torch.equal(a, b) for m, a, b in zip(mirrored, turned, x, strict=True))


def test_turned_pictures_keep_their_middle_and_lose_their_corners():
    x = torch.ones(50, 1, 33, 33)
    turned = flip_and_turn(x, torch_rng_for(0))
    assert (turned[:, :, 12:21, 12:21] == 1).all()
    assert (turned[:, 0, 0, 0] == 0).float().mean() > 0.5
