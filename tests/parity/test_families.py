"""Tiny random models of published families: saved by Hugging Face's library, read by ours, and back."""

import chex
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import functional, interop, models, pure
from jaxformer.interop.pretrained import effective
from tests.parity.copied import HIDDEN, TARGET, TOKENS, VALID, D, F, L, N, V, bart_like, randomized, read, t5
from tests.parity.tensors import array

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")
transformers = pytest.importorskip("transformers", reason="transformers is not installed: pip install transformers")
pytestmark = pytest.mark.parity


def agree(ours, theirs, where=None):
    """Checks that results agree to 2e-5 at unit scale."""
    ours, theirs = np.asarray(ours), theirs.detach().numpy()
    assert ours.shape == theirs.shape
    scale = max(1.0, theirs.std())
    difference = np.abs(ours - theirs) / scale
    assert (difference if where is None else difference[where]).max() < 2e-5


def written(found, folder, kind):
    """Writes what was read, and reads it with their library; the same weights must come back."""
    interop.save_pretrained(folder, found.net, found.params, family=found.family, settings=found.settings)
    again = interop.load_pretrained(folder)
    chex.assert_trees_all_equal(again.params, found.params)
    model, report = kind.from_pretrained(folder, output_loading_info=True)
    assert all("pooler" in name for name in report["missing_keys"])
    assert not report["unexpected_keys"]
    return model.eval()


def sequence_to_sequence(model, tmp_path):
    """Compares logits of a padded batch, with what is read and with what is written."""
    found = read(model)
    given = {"input_ids": torch.tensor(TOKENS), "attention_mask": torch.tensor(VALID.astype(int))}
    given["decoder_input_ids"] = torch.tensor(TARGET)
    source = functional.Tokens(jnp.asarray(TOKENS), jnp.asarray(VALID))
    ours = found.net.apply(found.params, source, jnp.asarray(TARGET))
    agree(ours, model(**given).logits)
    agree(ours, written(found, tmp_path / "model", type(model))(**given).logits)


@pytest.mark.parametrize("scale", [False, True])
@pytest.mark.parametrize("family", ["marian", "bart", "mbart", "pegasus", "m2m_100"])
def test_bart_and_its_relatives(family, scale, tmp_path):
    sequence_to_sequence(bart_like(family, scale_embedding=scale), tmp_path)


def test_marian_with_two_vocabularies(tmp_path):
    options = {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": V, "tie_word_embeddings": False}
    sequence_to_sequence(bart_like("marian", **options), tmp_path)


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_t5(version, tmp_path):
    sequence_to_sequence(t5(version), tmp_path)


def test_mt5(tmp_path):
    """Their library writes ``tie_word_embeddings`` as true, which does not mean that the logits have a scale."""
    shape = {"vocab_size": V, "d_model": D, "d_kv": 6, "d_ff": F, "num_layers": L, "num_heads": N, "dropout_rate": 0.0}
    sequence_to_sequence(
        randomized(transformers.MT5ForConditionalGeneration(transformers.MT5Config(**shape))), tmp_path
    )


def bert_like(family, head):
    """Their BERT or RoBERTa."""
    shape = {"vocab_size": V, "hidden_size": D, "num_hidden_layers": L, "num_attention_heads": N} | HIDDEN
    shape |= {"intermediate_size": F, "max_position_embeddings": 20}
    if family == "distilbert":
        shape = {"vocab_size": V, "dim": D, "n_layers": L, "n_heads": N, "hidden_dim": F, "max_position_embeddings": 20}
        shape |= {"dropout": 0.0, "attention_dropout": 0.0}
    if family == "roberta":
        shape |= {"pad_token_id": 1, "type_vocab_size": 1, "layer_norm_eps": 1e-5}
    prefix = {"bert": "Bert", "roberta": "Roberta", "distilbert": "DistilBert"}[family]
    config = getattr(transformers, f"{prefix}Config")(**shape)
    model = getattr(transformers, f"{prefix}{head}")
    bare = head == "Model" and family != "distilbert"
    return randomized(model(config, add_pooling_layer=False) if bare else model(config))


@pytest.mark.parametrize("head", ["Model", "ForMaskedLM"])
@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert"])
def test_bert_and_roberta(family, head, tmp_path):
    model = bert_like(family, head)
    found = read(model)
    tokens = np.where(VALID, TOKENS, 1 if family == "roberta" else 0)
    given, types = {}, np.zeros_like(tokens)
    if family == "roberta":
        given["positions"] = jnp.asarray(np.cumsum(VALID, 1) * VALID - 1)
    elif family == "bert":
        types[:, 4:] = 1
        given["types"] = jnp.asarray(types)
    result = found.net.apply(found.params, functional.Tokens(jnp.asarray(tokens), jnp.asarray(VALID), **given))
    ours = result[0].states if head == "Model" else result
    others = {"attention_mask": torch.tensor(VALID.astype(int))}
    others |= {} if family == "distilbert" else {"token_type_ids": torch.tensor(types)}
    for theirs in (model, written(found, tmp_path / "model", type(model))):
        output = theirs(input_ids=torch.tensor(tokens), **others)
        agree(ours, output.last_hidden_state if head == "Model" else output.logits, VALID)


def test_a_classifier_is_read_as_its_encoder():
    model = bert_like("bert", "ForSequenceClassification")
    found = read(model)
    ours = found.net.apply(found.params, jnp.asarray(TOKENS))[0].states
    agree(ours, model.bert(torch.tensor(TOKENS)).last_hidden_state)
    heads = {"bert.pooler.dense.bias", "bert.pooler.dense.weight", "classifier.bias", "classifier.weight"}
    assert set(found.unused) == heads


@pytest.mark.parametrize("options", [{}, {"scale_attn_weights": False, "n_inner": None}])
def test_gpt2(options, tmp_path):
    shape = {"vocab_size": V, "n_embd": D, "n_layer": L, "n_head": N, "n_inner": F, "n_positions": 20}
    config = transformers.GPT2Config(**shape | options, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    language_model(transformers.GPT2LMHeadModel(config), tmp_path)


def language_model(model, tmp_path):
    """Compares logits, with what is read and with what is written."""
    found = read(randomized(model))
    ours = found.net.apply(found.params, jnp.asarray(TOKENS))
    agree(ours, model(torch.tensor(TOKENS)).logits)
    agree(ours, written(found, tmp_path / "model", type(model))(torch.tensor(TOKENS)).logits)


SCALINGS = {
    "none": {"rope_type": "default", "rope_theta": 500.0},
    "linear": {"rope_type": "linear", "rope_theta": 500.0, "factor": 3.0},
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 500.0,
        "factor": 3.0,
        "original_max_position_embeddings": 8,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
    },
    "yarn": {"rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0, "original_max_position_embeddings": 8},
}
LLAMA = {"vocab_size": V, "hidden_size": D, "intermediate_size": F, "num_hidden_layers": L, "num_attention_heads": N}
LLAMA |= {"num_key_value_heads": 2, "max_position_embeddings": 32, "rms_norm_eps": 1e-5}


@pytest.mark.parametrize("scaling", SCALINGS)
def test_llama(scaling, tmp_path):
    config = transformers.LlamaConfig(**LLAMA, rope_parameters=SCALINGS[scaling])
    language_model(transformers.LlamaForCausalLM(config), tmp_path)


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("Llama", {"attention_bias": True, "tie_word_embeddings": True}),
        ("Llama", {"mlp_bias": True}),
        ("Mistral", {"sliding_window": None}),
        ("Mistral", {"sliding_window": 4}),
        ("Qwen2", {"tie_word_embeddings": True}),
        ("Qwen2", {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 0}),
        ("Qwen3", {"head_dim": 12}),
        ("Qwen3", {"use_sliding_window": True, "sliding_window": 1, "layer_types": ["sliding_attention"] * L}),
    ],
)
def test_relatives_of_llama(family, options, tmp_path):
    config = getattr(transformers, f"{family}Config")(**LLAMA | options)
    language_model(getattr(transformers, f"{family}ForCausalLM")(config), tmp_path)


@pytest.mark.filterwarnings("ignore:.*past_key_values.*:FutureWarning")  # renamed in their version 5
def test_windows_hold_in_cached_steps():
    """Their steps with a cache, their whole pass and our steps, beyond the window."""
    config = transformers.MistralConfig(**LLAMA, sliding_window=4, attn_implementation="eager")
    model = randomized(transformers.MistralForCausalLM(config))
    whole = model(torch.tensor(TOKENS)).logits
    found = read(model)
    bound = found.net.bind(found.params)
    context, state = bound.start(batch_size=len(TOKENS), beam_size=1, length=TOKENS.shape[1])
    past = None
    for t in range(TOKENS.shape[1]):
        theirs = model(torch.tensor(TOKENS[:, t : t + 1]), past_key_values=past, use_cache=True)
        past = theirs.past_key_values
        ours, state = bound.step(jnp.asarray(TOKENS[:, t : t + 1]), state, context)
        agree(ours, theirs.logits)
        agree(ours[:, 0], whole[:, t])


def vision_model(head):
    shape = {"hidden_size": D, "num_hidden_layers": L, "num_attention_heads": N, "intermediate_size": F} | HIDDEN
    config = transformers.ViTConfig(**shape, image_size=12, patch_size=4, num_channels=3, num_labels=5)
    if head == "Model":
        return randomized(transformers.ViTModel(config, add_pooling_layer=False))
    return randomized(transformers.ViTForImageClassification(config))


@pytest.mark.parametrize("size", [(12, 12), (20, 12), (8, 16)])
def test_vit(size):
    model = vision_model("ForImageClassification")
    found = read(model)
    images = array(2, *size, 3)
    pixels = torch.tensor(images.transpose(0, 3, 1, 2))
    config, params = models.with_image_size(found.net.config, found.params, size)
    agree(
        pure(models.VisionTransformer, config).apply(params, jnp.asarray(images)),
        model(pixels, interpolate_pos_encoding=size != (12, 12)).logits,
    )


@pytest.mark.parametrize("head", ["Model", "ForImageClassification"])
def test_vit_is_written(head, tmp_path):
    model = vision_model(head)
    found = read(model)
    images = array(2, 12, 12, 3)
    result = found.net.apply(found.params, jnp.asarray(images))
    pixels = torch.tensor(images.transpose(0, 3, 1, 2))
    for theirs in (model, written(found, tmp_path / "model", type(model))):
        output = theirs(pixels)
        agree(
            result[0].states if head == "Model" else result,
            output.last_hidden_state if head == "Model" else output.logits,
        )


CONFIGS = {
    "bart": "BartConfig",
    "mbart": "MBartConfig",
    "marian": "MarianConfig",
    "pegasus": "PegasusConfig",
    "m2m_100": "M2M100Config",
    "t5": "T5Config",
    "mt5": "MT5Config",
    "bert": "BertConfig",
    "roberta": "RobertaConfig",
    "distilbert": "DistilBertConfig",
    "gpt2": "GPT2Config",
    "llama": "LlamaConfig",
    "mistral": "MistralConfig",
    "qwen2": "Qwen2Config",
    "qwen3": "Qwen3Config",
    "vit": "ViTConfig",
}


@pytest.mark.parametrize("family", CONFIGS)
def test_settings_that_a_file_leaves_out_have_their_defaults(family):
    """An empty ``config.json`` stands for the defaults of their class."""
    full = getattr(transformers, CONFIGS[family])().to_dict()
    own = interop.FAMILIES[family].net
    shapes = {"lm_head.weight": (1, 1)}
    assert effective(own({}, shapes).config) == effective(own(full, shapes).config)
