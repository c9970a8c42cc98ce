"""Position schemes: only distances matter, no tensor for each pair, Hugging Face's numbers, errors."""

from fractions import Fraction
from functools import partial
from types import SimpleNamespace

import keras
import numpy as np
import pytest

from roformer_tf import layers
from roformer_tf.layers.position_schemes import POSITION_SCHEMES, make_position_schemes
from tests.layers.harness import assert_equal, built, numpy, randomize, weights_by_path
from tests.layers.position_cases import SCHEMES
from tests.layers.positioned_attention import positioned
from tests.oracles import numpy_positions as oracle

HEADS, HEAD_DIM, WIDTH = 2, 8, 16
RELATIVE = [name for name in SCHEMES if not name.startswith("tupe")]
MAKERS = {
    **{name: SCHEMES[name][0] for name in RELATIVE},
    "tupe": partial(layers.TupePosition, 300, HEADS, HEAD_DIM, untie_cls=True),
}


def attention(name, **kwargs):
    layer = positioned(MAKERS[name], HEADS, HEAD_DIM)(**kwargs)
    return built(layer, (None, None, WIDTH), name)


def random(rng, length):
    return rng.normal(size=(2, length, WIDTH)).astype("float32")


@pytest.mark.parametrize("name", RELATIVE)
def test_only_distances_matter(name, rng):
    layer, x = attention(name), random(rng, 6)
    positions = np.array([[0, 1, 2, 3, 4, 5], [7, 3, 3, 0, 40, 5]])
    before = numpy(layer(x, position_ids=positions))
    for shift in (1, -40, 1_000_000):
        after = numpy(layer(x, position_ids=positions + shift))
        # rows of tables are whole numbers; the sines of Transformer-XL are within 1e-6 of the truth
        np.testing.assert_allclose(after, before, atol=2e-5 if name == "transformer_xl" else 1e-6)
    assert np.abs(numpy(layer(x, position_ids=2 * positions)) - before).max() > 1e-3


@pytest.mark.parametrize("length", [1, 2, 3, 150])
@pytest.mark.parametrize("name", MAKERS)
def test_counted_positions_are_0_1_2(name, length, rng):
    layer, x = attention(name), random(rng, length)
    given = numpy(layer(x, position_ids=np.tile(np.arange(length), (2, 1))))
    np.testing.assert_allclose(numpy(layer(x)), given, atol=1e-5)


@pytest.mark.tensorflow("other backends compile for each length")
@pytest.mark.parametrize("name", MAKERS)
def test_any_length_in_one_graph(name, rng):
    import tensorflow as tf

    layer = attention(name)
    of_any_length = tf.TensorSpec((None, None, WIDTH))
    graph = tf.function(lambda x: layer(x), input_signature=[of_any_length])
    for length in (1, 2, 40):
        x = random(rng, length)
        np.testing.assert_allclose(numpy(graph(x)), numpy(layer(x)), atol=2e-6)


@pytest.mark.parametrize("given", [False, True], ids=["counted", "given"])
@pytest.mark.parametrize("name", MAKERS)
def test_padding_and_future_change_nothing(name, given, rng):
    layer, x = attention(name), random(rng, 5)
    longer = np.concatenate([x, 9 * random(rng, 3)], axis=1)

    def outputs(x, masking, real=5):
        length = x.shape[1]
        padding = np.tile(np.arange(length) < real, (2, 1)).astype("int32")
        bias = layers.AttentionMask(masking)(padding)
        positions = np.tile(np.arange(length), (2, 1)) if given else None
        return numpy(layer(x, position_ids=positions, attention_bias=bias))

    alone = outputs(x, "bidirectional")
    np.testing.assert_allclose(outputs(longer, "bidirectional")[:, :5], alone, atol=5e-6)
    alone = outputs(x, "causal")
    np.testing.assert_allclose(outputs(longer, "causal", 8)[:, :5], alone, atol=5e-6)


@pytest.mark.parametrize("name", MAKERS)
def test_order_matters(name, rng):
    layer, x = attention(name), random(rng, 6)
    backwards = numpy(layer(x[:, ::-1]))[:, ::-1]
    assert np.abs(backwards - numpy(layer(x))).max() > 0.01


@pytest.mark.tensorflow("reads TensorFlow's graph")
@pytest.mark.parametrize("name", ["relative", "nezha", "deberta", "t5", "transformer_xl"])
def test_no_vector_for_each_pair(name):
    """With one head of 64 features the largest tensor holds scores, of queries and distances."""
    import tensorflow as tf

    sizes = sizes_of_model(num_heads=1, head_dim=64, hidden_dim=64)
    names = {"nezha": "sinusoidal_relative"}
    options = {} if name in ("t5", "transformer_xl") else {"max_distance": 4}
    cls = POSITION_SCHEMES[names.get(name, name)]
    layer = positioned(lambda **kwargs: cls.for_model(sizes, **options, **kwargs), 1, 64)()
    x = np.zeros((1, 100, 64), "float32")

    @tf.function
    def gradients(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(layer(x) ** 2)
        return tape.gradient(loss, [x, *layer.trainable_variables])

    layer(x)
    operations = gradients.get_concrete_function(x).graph.get_operations()
    shapes = [y.shape for op in operations for y in op.outputs if y.shape.is_fully_defined()]
    largest = max(int(np.prod(shape)) for shape in shapes)
    assert largest <= 2 * 100 * 100


def t5_buckets(num_buckets, max_distance, bidirectional):
    """Returns distances, also some beyond `max_distance`, and their buckets."""
    scheme = layers.T5RelativeBias(1, num_buckets, max_distance, bidirectional)
    scheme.build()
    scheme.relative_bias.assign(np.arange(num_buckets)[:, None])
    distances = np.arange(-3 * max_distance, 3 * max_distance + 1)
    positions = np.concatenate([[0], distances])[None]
    return distances, numpy(scheme(positions, position_ids=positions))[0, 0, 0, 1:]


@pytest.mark.parametrize(
    "options", [(32, 128, True), (32, 128, False), (8, 5, True), (6, 77, False)]
)
def test_t5_buckets_by_exact_arithmetic(options):
    """Bucket exact + b of n starts where (distance / exact)^n reaches (max_distance / exact)^b."""
    num_buckets, max_distance, bidirectional = options
    distances, found = t5_buckets(*options)
    half = num_buckets // 2 if bidirectional else num_buckets
    exact = half // 2
    for distance, bucket in zip(distances.tolist(), found.tolist(), strict=True):
        away = abs(distance) if bidirectional else max(-distance, 0)
        expected = away
        if away >= exact:
            count = half - exact
            ratio, last = Fraction(away, exact) ** count, Fraction(max_distance, exact)
            expected = exact + max(b for b in range(count) if last**b <= ratio)
        expected += half if bidirectional and distance > 0 else 0
        assert bucket == expected == oracle.t5_bucket(distance, *options)


@pytest.mark.parametrize("sizes", [(32, 128), (64, 512), (10, 37)])
@pytest.mark.parametrize("bidirectional", [True, False])
def test_t5_buckets_equal_hugging_face(sizes, bidirectional):
    torch = pytest.importorskip("torch")
    t5 = pytest.importorskip("transformers.models.t5.modeling_t5")
    distances, found = t5_buckets(*sizes, bidirectional)
    expected = t5.T5Attention._relative_position_bucket(
        torch.tensor(distances), bidirectional, *sizes
    )
    np.testing.assert_array_equal(found, expected.numpy())


def test_deberta_equals_hugging_face(rng):
    """DeBERTa-v2 with `share_att_key`. Its table is one shorter; no distance here is clipped."""
    span = 7
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    deberta = pytest.importorskip("transformers.models.deberta_v2.modeling_deberta_v2")
    ours = positioned(partial(layers.DebertaPosition, WIDTH, span), HEADS, HEAD_DIM)()
    built(ours, (None, None, WIDTH))
    config = transformers.DebertaV2Config(
        hidden_size=WIDTH,
        num_attention_heads=HEADS,
        max_relative_positions=span,
        relative_attention=True,
        share_att_key=True,
        pos_att_type=["c2p", "p2c"],
        position_buckets=-1,
    )
    theirs = deberta.DisentangledSelfAttention(config).eval()
    qkv = ours.attention.qkv
    weights = zip(
        ("query_proj", "key_proj", "value_proj"),
        np.split(numpy(qkv.kernel), 3, axis=1),
        np.split(numpy(qkv.bias), 3),
        strict=True,
    )
    state = {}
    for name, kernel, bias in weights:
        state |= {f"{name}.weight": torch.tensor(kernel.T), f"{name}.bias": torch.tensor(bias)}
    theirs.load_state_dict(state)
    # rows of key - query against rows of query - key
    table = numpy(ours.attention.position_scheme.distance_table)[:0:-1]
    x = rng.normal(size=(2, span, WIDTH)).astype("float32")
    positions = torch.arange(span)
    with torch.no_grad():
        outputs, _ = theirs(
            torch.tensor(x),
            torch.ones(2, 1, span, span, dtype=torch.bool),
            relative_pos=(positions[:, None] - positions)[None],
            rel_embeddings=torch.tensor(table.copy()),
        )
    dense = ours.attention.output_dense
    expected = outputs.numpy() @ numpy(dense.kernel) + numpy(dense.bias)
    np.testing.assert_allclose(numpy(ours(x)), expected, atol=1e-5)


@pytest.mark.parametrize("options", [{}, {"relative_bias": False}, {"untie_cls": True}])
@pytest.mark.parametrize(
    "dtype",
    ["float32", pytest.param("float64", marks=pytest.mark.tensorflow("JAX has no float64"))],
)
def test_tupe_bias_equals_float64(options, dtype):
    scheme = built(layers.TupePosition(9, HEADS, HEAD_DIM, **options, dtype=dtype))
    positions = np.array([[0, 1, 2, 3], [3, 0, 8, 0]])
    untie = options.get("untie_cls", False)
    expected = oracle.tupe_bias(weights_by_path(scheme), positions, HEADS, untie_cls=untie)
    found = numpy(scheme(positions, positions))
    np.testing.assert_allclose(found, expected, atol=2e-6)
    assert found.dtype == "float32"


@pytest.mark.parametrize("dtype", ["mixed_float16", "mixed_bfloat16"])
def test_large_positions_are_exact_in_half_precision(dtype):
    scheme = layers.SinusoidalPosition(8, dtype=dtype)
    positions = np.array([[1_000_000, 1_000_001.5]], "float32")
    expected = np.array([[oracle.sinusoid(m, 8) for m in positions[0]]])
    rounding = 2.0**-11 if dtype == "mixed_float16" else 2.0**-8
    np.testing.assert_allclose(numpy(scheme(positions, positions)), expected, atol=rounding)
    scale = layers.SinusoidalPosition(8, scale=0.25)
    np.testing.assert_allclose(numpy(scale(positions, positions)), expected / 4, atol=1e-6)


def sizes_of_model(**changes):
    sizes = {
        "head_dim": HEAD_DIM,
        "num_heads": HEADS,
        "hidden_dim": WIDTH,
        "embedding_dim": WIDTH,
        "max_sequence_length": 64,
        "max_wavelength": 10000.0,
        "masking": "bidirectional",
        "initializer": "zeros",
    }
    return SimpleNamespace(**{**sizes, **changes})


def test_schemes_are_shared_or_one_for_each_block():
    for name, cls in POSITION_SCHEMES.items():
        schemes = make_position_schemes(name, 3, sizes_of_model())
        assert len({id(scheme) for scheme in schemes}) == (3 if cls.per_layer else 1)
    causal = make_position_schemes("t5", 1, sizes_of_model(masking="causal"))[0]
    assert not causal.bidirectional
    [tupe] = make_position_schemes("tupe", 1, sizes_of_model(masking="unilm"))
    assert tupe.t5_relative_bias.bidirectional  # the first segment is seen in both directions


@pytest.mark.parametrize(
    "name, options, message",
    [
        ("shaw", None, "must be one of .*'deberta'.*Received: .*'shaw'"),
        (["rotary"], None, "must be one of .*Received: .*rotary"),
        ("relative", {"distance": 3}, "arguments of `RelativePosition`: .*max_distance.*Received"),
        ("relative", {"head_dim": 3}, "must not set an argument that the model sets"),
        ("none", {"scale": 3}, "arguments of `PositionScheme`: it has none"),
        ("deberta", {"max_distance": 0}, "`max_distance` must be a positive integer"),
        ("t5", {"num_buckets": 2}, "`num_buckets` must be even and 4 at least"),
        ("t5", {"num_buckets": "32"}, "has the wrong type.*num_buckets"),
    ],
)
def test_wrong_options(name, options, message):
    with pytest.raises(ValueError, match=message):
        make_position_schemes(name, 2, sizes_of_model(), options)


class Shifted(layers.RotaryPosition):
    def __init__(self, head_dim, shift=0, **kwargs):
        super().__init__(head_dim, **kwargs)
        self.shift = shift


class Sloped(layers.RotaryPosition):
    def __init__(self, head_dim, slopes=(), **kwargs):
        super().__init__(head_dim, **kwargs)
        self.slopes = SimpleNamespace(values=slopes)  # which Keras cannot save

    def get_config(self):
        return {**super().get_config(), "slopes": self.slopes.values}


@pytest.mark.parametrize("make", [partial(Shifted, shift=3), partial(Sloped, slopes=[0.5])])
def test_a_scheme_of_your_own_keeps_its_arguments(make):
    scheme = make(8, max_wavelength=100.0, dtype=keras.DTypePolicy("mixed_float16"))
    config = scheme.get_config()
    assert config["max_wavelength"] == 100.0
    assert type(scheme).from_config(config).get_config() == config
    assert config.get("shift") == 3 or config["slopes"] == [0.5]


SHARING = {
    "blocks": lambda: partial(
        layers.EncoderBlock, 16, 24, 2, position_scheme=layers.T5RelativeBias(2)
    ),
    "attention": lambda: partial(
        layers.SelfAttention, 2, 8, position_scheme=layers.RotaryPosition(8, learned=True)
    ),
    "feature map": lambda: partial(
        layers.LinearAttention, 2, 8, feature_map=layers.FavorFeatureMap(6)
    ),
}


@pytest.mark.parametrize("make", SHARING.values(), ids=SHARING)
def test_layers_that_share_a_scheme_or_a_feature_map(make, tmp_path, rng):
    """In a file they share it too: it has one set of weights, and outputs are the same."""
    make, inputs = make(), keras.Input((5, 16))
    model = keras.Model(inputs, make()(make()(inputs)))
    randomize(model)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert len(loaded.weights) == len(model.weights)
    x = rng.normal(size=(2, 5, 16)).astype("float32")
    assert_equal(loaded(x), model(x))


def test_errors_of_schemes_and_attention():
    with pytest.raises(ValueError, match="`embedding_dim` must be a positive even integer"):
        layers.SinusoidalPosition(7)
    with pytest.raises(ValueError, match="The sequence has 65 tokens"):
        make_position_schemes("tupe", 1, sizes_of_model())[0](np.zeros((1, 65), "int32"))
    with pytest.raises(ValueError, match="added to the embeddings.*SinusoidalPosition"):
        layers.SelfAttention(2, 8, position_scheme=layers.SinusoidalPosition(16))
    with pytest.raises(ValueError, match=r"`position=scheme\(token_ids\)`. Received: position=No"):
        layers.RotaryPosition(8).apply_to_query_key(np.zeros((1, 1, 3, 8)), None, None)


@pytest.mark.tensorflow("of TensorFlow's graphs")
@pytest.mark.parametrize("positions", [[0, 1, 8], [-1, 0, 1]])
def test_positions_outside_of_the_table(positions):
    """A graph raises an error, XLA gives NaN: never the vector of another position."""
    import tensorflow as tf

    scheme = layers.LearnedPosition(max_sequence_length=8, embedding_dim=4)
    ids, positions = tf.zeros([1, 3], tf.int32), tf.constant([positions], tf.float32)
    shape = tf.TensorSpec([None, None], tf.int32)
    counted = tf.function(lambda x: scheme(x), input_signature=[shape])
    assert counted(tf.zeros([1, 8], tf.int32)).shape == (1, 8, 4)
    with pytest.raises(tf.errors.InvalidArgumentError, match="positions from 0 to 7 only"):
        counted(tf.zeros([1, 9], tf.int32))
    with pytest.raises(tf.errors.InvalidArgumentError, match="positions from 0 to 7 only"):
        scheme(ids, positions)
    compiled = tf.function(lambda: scheme(ids, positions), jit_compile=True)()
    outside = np.array((positions < 0) | (positions > 7))
    np.testing.assert_array_equal(np.isnan(numpy(compiled)).all(-1), outside)
    expected = numpy(scheme.position_embedding.embeddings)[:2]
    np.testing.assert_array_equal(numpy(compiled)[~outside], expected)
