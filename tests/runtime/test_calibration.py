"""A model on a device's own images: norms measured there, kept beside the bundle, and undone."""

import shutil
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from helpers.bundles import StandingAttack, images, random_bundle
from helpers.picture_folders import write_pictures
from splitmix import Model
from splitmix.core.errors import UserError
from splitmix.runtime.images import read_images


@pytest.mark.slow
def test_calibrated_norms_have_the_statistics_of_the_images(model):
    x = (images(64) * 0.3).astype(np.uint8)
    model.calibrate(x)
    assert (model.calibration.images, model.calibration.bases) == (64, 4)
    assert model.calibration.attack.startswith("L-inf PGD")
    conv = model.mix().body.conv1(torch.from_numpy(x).float().permute(0, 3, 1, 2) / 255)
    mean = conv.mean((0, 2, 3)).view(4, -1)
    clean, noisy = (
        torch.from_numpy(model.calibration.statistics[f"norm1.{twin}.running_mean"]) for twin in ("clean", "noisy")
    )
    torch.testing.assert_close(clean, mean, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(noisy, mean, rtol=1e-3, atol=1e-4)
    assert torch.allclose(noisy, mean, atol=0.2)  # the attack moves pixels by 8/255


def test_a_calibration_serves_all_widths_and_can_be_undone(model):
    x = images(32)
    before = {width: model(x, width, 0.3) for width in model.widths}
    model.calibrate(x, attack=StandingAttack())
    once = {width: model(x, width, 0.3) for width in model.widths}
    model.calibrate(x, attack=StandingAttack())  # twice is as once
    for width in model.widths:
        assert torch.equal(model(x, width, 0.3), once[width])
        assert not torch.allclose(once[width], before[width], atol=1e-3)
    model.uncalibrate()
    assert model.calibration is None
    for width in model.widths:
        assert torch.equal(model(x, width, 0.3), before[width])


def test_a_calibration_is_kept_beside_the_bundle(model, bundle, tmp_path):
    x = images(20)
    model.calibrate(x, attack=StandingAttack())
    file = model.save_calibration(tmp_path / "mine.safetensors")
    again = Model.load(bundle.path, calibration=file)
    assert torch.equal(again(x, robust=0.5), model(x, robust=0.5))
    assert (again.calibration.images, again.calibration.attack) == (20, "none")
    assert not torch.equal(Model.load(bundle.path)(x), model(x))


def test_bases_that_come_after_a_calibration_keep_their_own_statistics(bundle, model, tmp_path):
    device = shutil.copytree(bundle.path, tmp_path / "device")
    parked = (device / "base-3.safetensors").rename(tmp_path / "parked")
    growing, x = Model.load(device), images(20)
    growing.calibrate(x, attack=StandingAttack())
    file = growing.save_calibration()
    assert file == device / "calibration.safetensors"
    parked.rename(device / "base-3.safetensors")
    growing.refresh()
    for found in (growing, Model.load(device, calibration=True)):
        torch.testing.assert_close(found.logits_by_base(x)[3], model.logits_by_base(x)[3], rtol=1e-5, atol=1e-6)
        assert not torch.allclose(found.logits_by_base(x)[2], model.logits_by_base(x)[2], atol=1e-3)


def test_a_calibration_of_another_bundle_or_a_damaged_one_is_one_sentence(model, bundle, tmp_path):
    model.calibrate(images(16), attack=StandingAttack())
    file = model.save_calibration(tmp_path / "mine.safetensors")
    other = random_bundle(tmp_path / "other", atom="1/16", bases=4, seed=5)
    with pytest.raises(UserError, match="belongs to another bundle"):
        Model.load(other.path, calibration=file)
    data = bytearray(file.read_bytes())
    data[-2] ^= 4
    file.write_bytes(data)
    with pytest.raises(UserError, match="damaged"):
        Model.load(bundle.path, calibration=file)
    with pytest.raises(UserError, match="there is no file"):
        Model.load(other.path, calibration=True)


def test_what_cannot_be_calibrated_or_saved_is_one_sentence_and_single_norms_need_no_attack(model, tmp_path):
    with pytest.raises(UserError, match="15 images are too few to calibrate on; give 16 or more"):
        model.calibrate(images(15))
    with pytest.raises(UserError, match="has not been calibrated here"):
        model.save_calibration()
    single = Model.load(random_bundle(tmp_path / "single", atom="1/16", bases=2, dual=False).path)
    single.calibrate(images(16))
    assert single.calibration.attack is None


@pytest.mark.slow
def test_samples_that_are_no_images_come_from_npz_files_as_they_are(tmp_path):
    x = np.random.default_rng(0).normal(size=(20, 3, 8, 8)).astype(np.float32)  # images that were standardised
    np.savez(tmp_path / "some.npz", x=x)
    assert np.array_equal(read_images(tmp_path, (3, 8, 8), 512, "signal"), x)
    write_pictures(tmp_path / "pictures", 2)
    assert len(read_images(tmp_path, (3, 8, 8), 512, "signal")) == 20
    with pytest.raises(UserError, match=r"has no \.npz files; this model takes features"):
        read_images(tmp_path / "pictures", (3,), 512, "features")


def test_a_thread_keeps_its_bases_while_others_calibrate_and_refresh(model):
    x = images(16)
    before = model(x, "1/8")
    model.calibrate(x, attack=StandingAttack())
    after = model(x, "1/8")
    model.uncalibrate()

    def read(_):
        found = model(x, "1/8")
        return any(torch.allclose(found, known, rtol=1e-5, atol=1e-6) for known in (before, after))

    with ThreadPoolExecutor(4) as pool:
        answers = pool.map(read, range(24))
        for _ in range(2):
            model.calibrate(x, attack=StandingAttack())
            model.refresh()
            model.uncalibrate()
        assert all(answers)
