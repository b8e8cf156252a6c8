"""`preprocessing` and `postprocessing` in MONAI Label, MONAI Deploy and MONAI's engine give the masks of a run."""

import copy
import functools
import json

import cv2
import numpy as np
import pytest
import torch
from monai.bundle import ConfigParser
from monai.data import DataLoader, Dataset, MetaTensor
from monai.engines import SupervisedEvaluator
from monai.transforms import Compose, LoadImaged, Resize
from PIL import Image

from shared_components.bundle_engines import FrameReader, FrameToNetworkd, MaskToFramed
from shared_components.cli import main
from shared_components.data.files.images import DataError
from shared_components.inference import InferenceError
from shared_components.scenes.scene import render_video
from tests.bundles.conftest import UNPROMPTED, export

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
EACH = pytest.mark.parametrize("bundle", UNPROMPTED)
HEIGHT, WIDTH = (250, 330)  # of the frame: no multiple of 32, larger than the network's input and of another shape


@pytest.fixture(scope="module")
def scene():
    (scene,) = render_video("rose", 3, frames=1, height=HEIGHT, width=WIDTH, rate=10)
    return scene.image


@pytest.fixture
def picture(scene, tmp_path):
    Image.fromarray(scene).save(tmp_path / "frame.png")
    return tmp_path / "frame.png"


@pytest.fixture(scope="module")
def expected_mask(scene, tmp_path_factory):
    """Return a function: the mask that `surgfl segment` writes of the frame with the bundle's own weights."""
    folder = tmp_path_factory.mktemp("segmented")
    Image.fromarray(scene).save(folder / "frame.png")

    @functools.cache
    def expected_mask(bundle):
        words = ["--bundle", bundle, "--out", str(folder / bundle), "--threads", "1"]
        assert main(["segment", str(folder / "frame.png"), *words]) == 0
        return cv2.imread(str(folder / bundle / "masks" / "frame.png"), cv2.IMREAD_UNCHANGED)

    return expected_mask


@pytest.fixture
def bundles(zoo):
    return zoo


@pytest.fixture
def config(bundles):
    """Return a function: a bundle's parsed inference config, with its metadata, as the apps read it."""

    def config(bundle):
        parser = ConfigParser()
        parser.read_config(str(bundles / bundle / "configs" / "inference.yaml"))
        parser.read_meta(str(bundles / bundle / "configs" / "metadata.json"))
        parser.config["bundle_root"] = str(bundles / bundle)
        return parser

    return config


def network_of(parser, bundles, bundle):
    """As MONAI Label does: a copy of `network_def`, and `model.pt` read strictly."""
    network = copy.deepcopy(parser.get_parsed_content("network_def"))
    network.load_state_dict(torch.load(bundles / bundle / "models" / "model.pt", weights_only=True))
    return network.eval()


def predicted(parser, network, data, pre, post):
    for transform in pre:
        data = transform(data)
    with torch.no_grad():
        logits = parser.get_parsed_content("inferer")(data["image"][None], network)
    data["pred"] = logits[0]
    for transform in post:
        data = transform(data)
    return data


def transforms_of(parser, key):
    return list(parser.get_parsed_content(key).transforms)


def loaded_by_label(transforms):
    """Load arrays with this metadata instead of `LoadImaged`, as MONAI Label does."""
    first, *rest = transforms
    assert isinstance(first, LoadImaged)

    def load(data):
        if isinstance(data["image"], str):
            return first(data)
        meta = {"spatial_shape": data["image"].shape[:-1], "original_channel_dim": -1, "original_affine": None}
        return {**data, "image": MetaTensor(data["image"], meta=meta)}

    return [load, *rest]


def restored(mask, image):
    """Resize a mask to the size in the image's metadata, as MONAI Label does."""
    shape = tuple(image.meta["spatial_shape"])
    return mask if tuple(mask.shape[1:]) == shape else Resize(shape, mode="nearest")(mask)


@pytest.mark.slow
@EACH
@pytest.mark.full_width
def test_monai_label_gets_the_masks_of_surgfl_segment(config, bundles, bundle, picture, scene, expected_mask):
    parser = config(bundle)
    network = network_of(parser, bundles, bundle)
    pre, post = (loaded_by_label(transforms_of(parser, "preprocessing")), transforms_of(parser, "postprocessing"))
    of_file = predicted(parser, network, {"image": str(picture)}, pre, post)
    of_array = predicted(parser, network, {"image": scene}, pre, post)
    mask = expected_mask(bundle)
    assert mask.shape == (HEIGHT, WIDTH) and len(np.unique(mask)) > 1
    assert np.array_equal(np.asarray(restored(of_array["pred"], of_array["image"]))[0], mask)
    # MONAI has the columns of a picture's file first, and what it draws expects them there
    assert np.array_equal(np.asarray(restored(of_file["pred"], of_file["image"]))[0].T, mask)


@EACH
@pytest.mark.full_width
def test_preprocessing_takes_an_array_as_it_takes_a_file(config, bundle, picture, scene):
    """A file has its columns first, an array its rows."""
    parser = config(bundle)
    prepare, finish = (parser.get_parsed_content(key) for key in ("preprocessing", "postprocessing"))
    of_file, of_array = prepare({"image": str(picture)}), prepare({"image": scene})
    assert torch.equal(of_array["image"].as_tensor(), of_file["image"].as_tensor())
    assert torch.equal(prepare({"image": torch.from_numpy(scene)})["image"], of_array["image"])
    logits = torch.rand((4, *of_array["image"].shape[1:]), generator=torch.Generator().manual_seed(0))
    masks = [finish({"pred": logits, **options})["pred"] for options in (of_file, of_array)]
    assert masks[1].shape == (1, HEIGHT, WIDTH)
    assert np.array_equal(np.asarray(masks[0])[0].T, np.asarray(masks[1])[0])


@pytest.fixture
def package(bundles, tmp_path):
    """Return a function that exports the TorchScript for MONAI Deploy, and reads network and configs from it."""

    def package(bundle):
        path = tmp_path / f"{bundle}.ts"
        export(bundles / bundle, path)
        texts = {"metadata.json": "", "inference.json": ""}
        network = torch.jit.load(str(path), _extra_files=texts).eval()
        parser = ConfigParser(json.loads(texts["inference.json"]))
        parser.read_meta(json.loads(texts["metadata.json"]))
        parser.parse()
        return network, parser

    return package


@pytest.mark.slow
@EACH
@pytest.mark.full_width
def test_monai_deploy_gets_the_masks_of_surgfl_segment(package, bundle, scene, expected_mask, tmp_path, monkeypatch):
    """MONAI Deploy needs only the TorchScript, which contains the configs."""
    monkeypatch.chdir(tmp_path)
    network, parser = package(bundle)
    assert str(parser.get_parsed_content("device")) in ("cpu", "cuda")
    compose = {key: parser.get_parsed_content(key) for key in ("preprocessing", "postprocessing")}
    for one in compose.values():  # it leaves out what loads and saves
        one.transforms = tuple(t for t in one.transforms if "LoadImage" not in type(t).__name__)
    (options,), (got,) = (parser["_meta_"]["network_data_format"][side] for side in ("inputs", "outputs"))
    image = MetaTensor.ensure_torch_and_prune_meta(scene.astype(np.float32), {"filename": "frame.png"})
    shown = compose["preprocessing"]({options: image})
    pred = parser.get_parsed_content("inferer")(inputs=shown[options][None], network=network)
    result = compose["postprocessing"]({got: pred.detach()[0], **shown})[got]
    assert result.dtype == torch.uint8 and result.shape == (1, HEIGHT, WIDTH)
    assert np.array_equal(np.asarray(result)[0], expected_mask(bundle))


@pytest.mark.full_width
def test_monais_own_engine_gets_the_mask_in_batches(config, bundles, picture, scene, expected_mask):
    Image.fromarray(scene[:200]).save(picture.with_name("other.png"))
    parser = config("pvt_fpn")
    files = [{"image": str(picture)}, {"image": str(picture.with_name("other.png"))}]
    result = []
    evaluator = SupervisedEvaluator(
        device=torch.device("cpu"),
        val_data_loader=DataLoader(Dataset(files, parser.get_parsed_content("preprocessing")), batch_size=2),
        network=network_of(parser, bundles, "pvt_fpn"),
        inferer=parser.get_parsed_content("inferer"),
        postprocessing=Compose([*transforms_of(parser, "postprocessing"), lambda d: (result.append(d["pred"]), d)[1]]),
    )
    evaluator.run()
    assert [tuple(mask.shape) for mask in result] == [(1, WIDTH, HEIGHT), (1, WIDTH, 200)]
    assert np.array_equal(np.asarray(result[0])[0].T, expected_mask("pvt_fpn"))


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "RGB"])
def test_any_kind_of_picture_has_three_channels_with_columns_first(tmp_path, mode):
    colours = np.zeros((4, 6, 3), np.uint8)
    colours[1, 5] = 255
    Image.fromarray(colours).convert(mode).save(tmp_path / "a.png")
    result = LoadImaged("image", reader=FrameReader())({"image": str(tmp_path / "a.png")})["image"]
    assert result.shape == (6, 4, 3) and tuple(result.meta["spatial_shape"]) == (6, 4)
    assert torch.equal(result, torch.from_numpy(colours.swapaxes(0, 1)).float())


def test_half_a_file_and_several_files_are_refused(picture):
    data = picture.read_bytes()
    picture.write_bytes(data[: len(data) // 2])
    with pytest.raises(DataError, match="is not a readable image"):
        FrameReader().read(str(picture))
    with pytest.raises(InferenceError, match="got 2 files; give one file per frame"):
        FrameReader().read([picture, picture])


def test_a_frame_of_the_networks_size_is_only_divided_by_255_and_a_mask_is_enlarged_by_hand():
    """2x2 to 4x6: every pixel twice down and three times across; the frame came with its rows first."""
    frame = np.arange(2 * 3 * 4).reshape(3, 2, 4)
    shown = FrameToNetworkd("image", 2, 4)({"image": frame, "name": "a"})
    assert shown["name"] == "a" and shown["image"].dtype == torch.float32
    assert torch.equal(shown["image"].as_tensor(), torch.from_numpy(frame).float() / 255)
    shown = FrameToNetworkd("image", 2, 2)({"image": np.zeros((3, 4, 6), np.uint8)})
    result = MaskToFramed("pred", frame="image")({**shown, "pred": torch.tensor([[[0.0, 1.0], [2.0, 3.0]]])})
    expected = [[0, 0, 0, 1, 1, 1]] * 2 + [[2, 2, 2, 3, 3, 3]] * 2
    assert result["pred"].tolist() == [expected]


@pytest.mark.filterwarnings("ignore:invalid value encountered in cast")
def test_what_is_no_frame_and_no_mask_of_a_known_frame_is_refused_in_one_sentence():
    for frame, sentence in (
        *((np.full((3, 2, 2), value), "are not whole numbers from 0 to 255") for value in (0.5, np.nan, 256, -1)),
        (np.zeros((4, 2, 2)), r"channel-first shape is \[4, 2, 2\];"),
        (np.zeros((2, 2)), r"channel-first shape is \[2, 2\];"),
        (np.zeros((3, 0, 2)), r"channel-first shape is \[3, 0, 2\];"),
    ):
        with pytest.raises(InferenceError, match=sentence):
            FrameToNetworkd("image", 32, 32)({"image": frame})
    shown = FrameToNetworkd("image", 2, 2)({"image": np.zeros((3, 4, 6), np.uint8)})
    for pred in (torch.zeros(4, 2, 2), torch.zeros(2, 2)):
        with pytest.raises(InferenceError, match="give a mask "):
            MaskToFramed("pred", frame="image")({**shown, "pred": pred})
    for image in (None, np.zeros((3, 2, 2)), MetaTensor(torch.zeros(3, 2, 2))):
        with pytest.raises(InferenceError, match="run the bundle's preprocessing on the frame"):
            MaskToFramed("pred", frame="image")({"pred": torch.zeros(1, 2, 2), "image": image})
